"""`roundoff convert`: the weights of one framework as a checkpoint of another."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from roundoff.cli.options import PATH
from roundoff.cli.terminal import echo
from roundoff.progress import waiting

KINDS = ("torch", "safetensors", "npz", "mindspore")


@click.command("convert", epilog="Example: roundoff convert net.pth net.ckpt --like mindspore_net.ckpt")
@click.argument("source", metavar="SOURCE", type=PATH)
@click.argument("target", metavar="TARGET", type=PATH)
@click.option("--to", type=click.Choice(KINDS), help="Format of TARGET.  [default: from its suffix]")
@click.option("--like", type=PATH, help="Use the names, shapes and dtypes of this checkpoint.")
@click.option("--map", "map_file", type=PATH, help="A file of lines 'name in SOURCE = new name'.")
@click.option("--force", is_flag=True, help="Overwrite TARGET if it exists.")
def convert_command(
    source: Path, target: Path, to: str | None, like: Path | None, map_file: Path | None, force: bool
) -> None:
    """Write the tensors of SOURCE, a checkpoint of any framework, into TARGET.

    TARGET is a .pth, .safetensors, .npz or MindSpore .ckpt file, with the names and layouts of that framework, or those
    of --like. The file is read back and checked before it replaces anything.
    """
    from roundoff.checkpoints.pair.pairing import read_name_map
    from roundoff.checkpoints.read.dispatch import read_checkpoint
    from roundoff.checkpoints.write.checkpoint_writer import TARGETS, Target, target_of, write_checkpoint
    from roundoff.checkpoints.write.conversion import plan_conversion

    kinds: dict[str, Target] = {name: name for name in TARGETS}
    kind = kinds[to] if to else target_of(target)
    with ExitStack() as stack:
        stack.enter_context(waiting(f"writing {target}"))
        reference = stack.enter_context(read_checkpoint(source))
        wanted = stack.enter_context(read_checkpoint(like)) if like else None
        plan = plan_conversion(
            reference, target=kind, like=wanted, name_map=read_name_map(map_file) if map_file else None
        )
        write_checkpoint(target, plan.tensors, target=kind, replace=force)
    echo(f"Wrote {len(plan.tensors)} tensors to {target} ({kind}), read back and equal to those of {source}.")
    for note in plan.notes:
        echo(f"  note   {note}")
    echo(f"  next   roundoff compare {source} {target}")
