"""`roundoff replay`: show a saved bad step, run it again, or export its op."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.exit_codes import exit_code_of
from roundoff.cli.console.options import PATH, fills, json_option
from roundoff.cli.console.screen import waiting
from roundoff.errors import ReplayError, UsageError

if TYPE_CHECKING:
    from roundoff.runs import Run


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
                fix="roundoff replay RUN --builder FILE.py:function; docs/watch.md shows one.",
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
    saved_step, rank = _find_saved_step(run, options)
    if options.export is not None:
        _export(saved_step, rank, options.export)
    elif options.builder is not None:
        sys.exit(_run_again(saved_step, rank, options.builder, options))
    else:
        _show(saved_step, rank, options)


def _find_saved_step(run: Run, options: ReplayOptions) -> tuple[Run, int]:
    """Find the folder of the saved step and a rank that has files there."""
    steps = run.replayed_steps
    if not steps:
        raise ReplayError.explain(
            f"No step was saved in '{run.path}'.",
            why="`roundoff run` saves a step that has a non-finite value, a jump of the loss or an exception.",
            fix="roundoff run SCRIPT, or roundoff diagnose RUN for what is there.",
        )
    if options.step is not None and options.step not in steps:
        raise ReplayError.explain(
            f"Step {options.step} was not saved in '{run.path}'.",
            why=f"saved steps: {', '.join(map(str, steps))}.",
            fix=f"--step {steps[0]}",
        )
    step = steps[0] if options.step is None else options.step
    saved_step = run.replay(step)
    ranks = [rank for rank in run.ranks if saved_step.replay_tape(rank=rank) is not None]
    if options.rank is None:
        return saved_step, ranks[0] if ranks else 0
    if options.rank not in ranks:
        raise ReplayError.explain(
            f"Rank {options.rank} saved nothing of step {step}.",
            why=f"ranks with files: {', '.join(map(str, ranks)) or 'none'}.",
        )
    return saved_step, options.rank


def _show(saved_step: Run, rank: int, options: ReplayOptions) -> None:
    from roundoff.cli.replay_text import saved_text
    from roundoff.replay.saved.saved_step import describe_saved_step
    from roundoff.runs import to_json

    saved = describe_saved_step(saved_step, rank=rank)
    if options.as_json:
        click.echo(to_json({"run": str(options.path), **saved.to_object()}, indent=1))
    else:
        click.echo(saved_text(saved, run=options.path))


def _export(saved_step: Run, rank: int, export: Path) -> None:
    from roundoff.replay.saved.export import export_repro

    files = export_repro(saved_step, to=export, rank=rank)
    click.echo(f"wrote {' and '.join(map(str, files))}; run it:  python {export}")


def _run_again(saved_step: Run, rank: int, builder: str, options: ReplayOptions) -> int:
    """Run the step again, print what happened, and return the exit code."""
    from roundoff.cli.replay_text import rerun_text
    from roundoff.replay.saved.builder import Builder
    from roundoff.replay.saved.rerun import rerun_step
    from roundoff.runs import to_json

    with waiting("running the step again"):
        again = rerun_step(saved_step, build=Builder(builder), recipe=options.recipe, to=options.to, rank=rank)
    if options.as_json:
        click.echo(to_json({"run": str(options.path), **again.to_object()}, indent=1))
    else:
        click.echo(rerun_text(again, run=options.path, builder=builder))
    return exit_code_of(again.is_bad)
