"""`roundoff replay`: show a saved bad step, run it again, or export its op."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.json_output import echo_json
from roundoff.cli.options import PATH, fills, json_option
from roundoff.cli.terminal import echo, exit_code_of
from roundoff.errors import ReplayError, UsageError
from roundoff.progress import waiting
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.replay.saved.rerun import Rerun
    from roundoff.replay.saved.saved_step import SavedBatchTensor, SavedStep
    from roundoff.runs import Origin, Run

_MAX_TENSORS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options of `roundoff replay`."""

    path: Path
    step: int | None
    rank: int | None
    builder: str | None
    recipe: str | None
    to: Path | None
    export: Path | None
    as_json: bool

    def check(self) -> None:
        """Refuse options that do not go together."""
        if self.builder is None and (self.recipe is not None or self.to is not None):
            raise UsageError.explain(
                f"{'--recipe' if self.recipe is not None else '--to'} needs --builder.",
                why="running the step again needs the model.",
                fix="roundoff replay RUN --builder FILE.py:function; `roundoff docs watch` shows one.",
            )
        if self.builder is not None and self.export is not None:
            raise UsageError.explain("--export and --builder cannot be combined.", fix="use only one of them.")


@click.command("replay", epilog="Example: roundoff replay runs/train-1 --builder model.py:build --recipe fp32")
@click.argument("path", metavar="RUN", type=PATH)
@click.option("--step", type=click.IntRange(min=0), help="Which saved step.  [default: the first]")
@click.option("--rank", type=click.IntRange(min=0), help="Which rank's files.  [default: the first rank]")
@click.option("--builder", metavar="FILE.py:FUNCTION", help="Function that returns the model, or (model, optimizer).")
@click.option("--recipe", help="Use this recipe instead; `roundoff recipes` lists them.")
@click.option("--to", type=PATH, metavar="DIR", help="Save the repeated step as a run in DIR.")
@click.option("--export", type=PATH, metavar="REPRO.py", help="Write a script that contains the bad op and its inputs.")
@json_option()
@fills(ReplayOptions)
def replay_command(options: ReplayOptions) -> None:
    """Show the bad step saved in RUN; with --builder run it again, with --export write a script with the bad op.

    The builder creates the model as the training did; its values come from RUN. The step then runs again, recorded op
    by op. Exits with 1 if the bad value appears again, otherwise with 0.
    """
    from roundoff.runs import Run

    options.check()
    run = Run.open(options.path)
    saved_step, rank = find_saved_step(run, step=options.step, rank=options.rank)
    if options.export is not None:
        _export(saved_step, rank, options.export)
    elif options.builder is not None:
        sys.exit(_run_again(saved_step, rank, options.builder, options))
    else:
        _show(saved_step, rank, options)


def find_saved_step(run: Run, *, step: int | None, rank: int | None) -> tuple[Run, int]:
    """Find the folder of the saved step and a rank that has files there."""
    steps = run.replayed_steps
    if not steps:
        raise ReplayError.explain(
            f"No step was saved in '{run.path}'.",
            why="`roundoff run` saves a step that has a non-finite value, a jump of the loss or an exception.",
            fix=f"see what is there: roundoff diagnose {run.path}",
        )
    if step is not None and step not in steps:
        raise ReplayError.explain(
            f"Step {step} was not saved in '{run.path}'.",
            why=f"saved steps: {', '.join(map(str, steps))}.",
            fix=f"--step {steps[0]}",
        )
    if not run.info.stores_data:
        raise ReplayError.explain(
            f"The data of the bad step was not stored in '{run.path}'.",
            why="the training was watched with --no-data, so only its own process could replay the step.",
            fix="roundoff diagnose RUN shows what that found; without --no-data the step is stored.",
        )
    wanted = steps[0] if step is None else step
    saved_step = run.replay(wanted)
    ranks = [each for each in run.ranks if saved_step.replay_tape(rank=each) is not None]
    if rank is None:
        return saved_step, ranks[0] if ranks else 0
    if rank not in ranks:
        raise ReplayError.explain(
            f"Rank {rank} saved nothing of step {wanted}.",
            why=f"ranks with files: {', '.join(map(str, ranks)) or 'none'}.",
        )
    return saved_step, rank


def _show(saved_step: Run, rank: int, options: ReplayOptions) -> None:
    from roundoff.replay.saved.saved_step import describe_saved_step

    saved = describe_saved_step(saved_step, rank=rank)
    if options.as_json:
        echo_json("replay", {"run": str(options.path), **saved.to_object()}, indent=1)
    else:
        echo(saved_text(saved, run=options.path))


def _export(saved_step: Run, rank: int, export: Path) -> None:
    from roundoff.replay.saved.export import export_repro

    files = export_repro(saved_step, to=export, rank=rank)
    echo(f"wrote {' and '.join(map(str, files))}; run it:  python {export}")


def _run_again(saved_step: Run, rank: int, builder: str, options: ReplayOptions) -> int:
    """Run the step again, print what happened, and return the exit code."""
    from roundoff.replay.saved.builder import Builder
    from roundoff.replay.saved.rerun import rerun_step

    with waiting("running the step again"):
        again = rerun_step(saved_step, build=Builder(builder), recipe=options.recipe, to=options.to, rank=rank)
    if options.as_json:
        echo_json("replay-again", {"run": str(options.path), **again.to_object()}, indent=1)
    else:
        echo(rerun_text(again, run=options.path, builder=builder))
    return exit_code_of(again.is_bad)


def saved_text(saved: SavedStep, *, run: Path) -> str:
    """Describe what was saved of a step, and how to continue."""
    from roundoff.replay.saved.export import is_exportable

    models = ", ".join(saved.models)
    lines = [
        f"step {saved.step} of {run}" + (f", rank {saved.rank}" if saved.rank else ""),
        f"  origin     {_origin_text(saved.origin)}",
        f"  model      {models}, {plural(saved.num_numbers, 'number')}",
        f"  optimizer  {', '.join(saved.optimizers) or 'none'}",
    ]
    for number, tensor in enumerate(saved.batch[:_MAX_TENSORS]):
        lines.append(f"  {'' if number else 'batch':<9}  {_tensor_text(tensor)}")
    if len(saved.batch) > _MAX_TENSORS:
        lines.append(f"{'':<13}{len(saved.batch) - _MAX_TENSORS} more")
    if saved.origin is not None and is_exportable(saved.origin):
        lines.append(f"  export     roundoff replay {run} --export repro.py")
    return "\n".join(
        [*lines, f"  run again  roundoff replay {run} --builder FILE.py:build", "", *_builder_lines(saved)]
    )


def rerun_text(again: Rerun, *, run: Path, builder: str) -> str:
    """Describe whether the bad value appeared again, where, and how much of the step is as it was."""
    from roundoff.diagnose.wording import format_whole

    how = f" with recipe {again.recipe}" if again.recipe is not None else ""
    lines = [f"step {again.step}{how}: {_headline(again)}"]
    if again.place is not None:
        bad = again.place.bad
        source = f"   {bad.source}" if bad.source else ""
        lines.append(f"  origin     {bad.site} / {bad.op_name}   {bad.phase}{source}")
    lines.append(f"  loss       {_loss_text(again)}")
    if again.recipe is None:
        lines.append(f"  same       {_same_text(again)}")
    elif again.loss_scale is not None:
        scale = format_whole(again.loss_scale)
        lines.append(f"  scale      the loss was multiplied by {scale}, the largest scale without overflow")
    if not again.has_optimizer:
        lines.append("  note       without the optimizer step: the builder returns no optimizer")
    if again.is_bad and again.recipe is None and not again.has_own_recipe:
        lines.append(f"  next       roundoff replay {run} --builder {builder} --recipe fp32")
    return "\n".join(lines)


def _headline(again: Rerun) -> str:
    if not again.is_bad and not again.was_bad:
        return "everything that matters is finite, as it was."
    if not again.is_bad:
        return "everything that matters is finite." if again.recipe else "the bad value does not appear again."
    if again.place is None:
        return "the loss is not finite again."
    return "the bad value appears again, at the same op." if again.is_same_place else "a bad value appears, elsewhere."


def _loss_text(again: Rerun) -> str:
    if not again.saved_losses:
        return _numbers(again.losses)
    is_same = [str(x) for x in again.losses] == [str(x) for x in again.saved_losses]
    return (
        f"{_numbers(again.losses)}, as it was"
        if is_same
        else f"{_numbers(again.losses)}; it was {_numbers(again.saved_losses)}"
    )


def _same_text(again: Rerun) -> str:
    if again.num_same == again.num_compared:
        return f"all {plural(again.num_compared, 'tensor')} of the step, bit for bit"
    first = again.first_difference
    where = "" if first is None else f"; the first that differs is {first.site} / {first.op_name} in {first.phase}"
    return f"{again.num_same} of {plural(again.num_compared, 'tensor')}, bit for bit{where}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" if math.isfinite(value) else str(value) for value in values) or "none"


def _origin_text(origin: Origin | None) -> str:
    if origin is None:
        return "no single op made the bad value; roundoff diagnose says more"
    width = {True: "; in fp64 it is finite", False: "; not finite in fp64 either", None: ""}[origin.is_finite_in_fp64]
    source = f"   {origin.source}" if origin.source else ""
    return f"{origin.site} / {origin.op}   {origin.phase}{source}{width}"


def _tensor_text(tensor: SavedBatchTensor) -> str:
    if tensor.least is None or tensor.largest is None:
        span = "no finite number"
    else:
        span = f"{tensor.least:.4g} to {tensor.largest:.4g}"
    bad = f", {tensor.num_nonfinite} not finite" if tensor.num_nonfinite else ""
    return f"{tensor.name:<11}{tensor.dtype:<10}{list(tensor.shape)!s:<18}{span}{bad}"


def _builder_lines(saved: SavedStep) -> list[str]:
    """Show a builder for this step."""
    names = [f"model{number + 1 if number else ''}" for number in range(len(saved.models))]
    lines = ["    def build():"]
    lines += [f"        {name} = {kind}(...)" for name, kind in zip(names, saved.models, strict=True)]
    returned = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
    for kind in saved.optimizers[:1]:
        lines.append(f"        {_optimizer_line(kind, names[0])}")
    returned += ", optimizer" if len(saved.optimizers) == 1 else ", [...]" if saved.optimizers else ""
    if saved.needs_loss is None:
        return [*lines, f"        return {returned}"]
    batch = ", ".join(tensor.name for tensor in saved.batch)
    return [
        *lines,
        f"        return {returned}, lambda model, {batch}: ...",
        "",
        f"The loss is needed because {saved.needs_loss}.",
    ]


def _optimizer_line(kind: str, model: str) -> str:
    import torch

    if kind == "RecipeOptimizer":
        return f"{model}, optimizer = roundoff.apply_recipe({model}, ..., ...)  # as the script does"
    return f"optimizer = {'torch.optim.' if hasattr(torch.optim, kind) else ''}{kind}({model}.parameters())"
