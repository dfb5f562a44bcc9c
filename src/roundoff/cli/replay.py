"""`roundoff replay`: a saved bad step, looked at, run again, or its op taken out of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roundoff.cli.console.screen import waiting

if TYPE_CHECKING:
    from roundoff.runs import Run


@click.command("replay", epilog="Example: roundoff replay runs/train-1 --builder model.py:build --recipe fp32")
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="Which of the saved steps; by default the first.")
@click.option("--rank", type=click.IntRange(min=0), help="Whose files to take; by default the first rank's.")
@click.option("--builder", metavar="FILE.py:FUNCTION", help="A function that returns model, or (model, optimizer).")
@click.option("--recipe", help="Run the step with this recipe instead; `roundoff recipes` lists them.")
@click.option("--to", type=click.Path(path_type=Path), help="Keep what was recorded as a run, in this folder.")
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="REPRO.py",
    help="Write a script with the bad op and its inputs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def replay_command(
    path: Path,
    step: int | None,
    rank: int | None,
    builder: str | None,
    recipe: str | None,
    to: Path | None,
    export: Path | None,
    as_json: bool,
) -> None:
    """Show the bad step that was saved in RUN; with a builder run it again, with --export take the bad op out.

    The builder makes the model as the training did, without its values: those are in RUN. The step is then run again op
    by op. Ends with 1 if the bad value appears again, with 0 if it does not.
    """
    from roundoff.errors import UsageError
    from roundoff.runs import Run

    if builder is None and (recipe is not None or to is not None):
        raise UsageError.explain(
            f"{'--recipe' if recipe is not None else '--to'} needs --builder.",
            why="to run the step again, the model is needed.",
            fix="roundoff replay RUN --builder FILE.py:function; docs/watch.md shows one.",
        )
    if builder is not None and export is not None:
        raise UsageError.explain("--export and --builder are two things.", fix="use one of them.")
    run = Run.open(path)
    replayed, rank = _find_saved_step(run, step, rank)
    if export is not None:
        _export(replayed, rank, export)
    elif builder is not None:
        _run_again(replayed, rank, builder=builder, recipe=recipe, to=to, as_json=as_json, path=path)
    else:
        _show(run, replayed, rank, as_json=as_json)


def _find_saved_step(run: Run, step: int | None, rank: int | None) -> tuple[Run, int]:
    """Find the folder of the replayed step and a rank that has files there."""
    from roundoff.errors import ReplayError

    steps = run.replayed_steps
    if not steps:
        raise ReplayError.explain(
            f"No step was saved in '{run.path}'.",
            why="steps are saved when something in them is not finite, jumps or raises, under `roundoff run`.",
            fix="roundoff run SCRIPT, or roundoff diagnose RUN for what is there.",
        )
    if step is not None and step not in steps:
        raise ReplayError.explain(
            f"Step {step} was not saved in '{run.path}'.", why=f"saved are {', '.join(map(str, steps))}.",
            fix=f"--step {steps[0]}",
        )  # fmt: skip
    replayed = run.replay(steps[0] if step is None else step)
    ranks = [number for number in run.ranks if replayed.replay_tape(rank=number) is not None]
    if rank is None:
        return replayed, ranks[0] if ranks else 0
    if rank not in ranks:
        raise ReplayError.explain(
            f"Rank {rank} saved nothing of step {replayed.steps[0] if replayed.steps else step}.",
            why=f"there are files of {', '.join(map(str, ranks)) or 'no rank'}.",
        )
    return replayed, rank


def _show(run: Run, replayed: Run, rank: int, *, as_json: bool) -> None:
    from roundoff.cli.replay_text import saved_text
    from roundoff.replay.saved.saved_step import describe_saved_step
    from roundoff.runs import to_json

    saved = describe_saved_step(replayed, rank=rank)
    if as_json:
        click.echo(to_json({"run": str(run.path), **saved.to_object()}, indent=1))
    else:
        click.echo(saved_text(saved, run=run.path))


def _export(replayed: Run, rank: int, export: Path) -> None:
    from roundoff.replay.saved.export import export_repro

    files = export_repro(replayed, to=export, rank=rank)
    click.echo(f"wrote {' and '.join(map(str, files))}; run it:  python {export}")


def _run_again(
    replayed: Run, rank: int, *, builder: str, recipe: str | None, to: Path | None, as_json: bool, path: Path
) -> None:
    from roundoff.cli.replay_text import rerun_text
    from roundoff.replay.saved.builder import Builder
    from roundoff.replay.saved.rerun import rerun_step
    from roundoff.runs import to_json

    with waiting("running the step again"):
        again = rerun_step(replayed, build=Builder(builder), recipe=recipe, to=to, rank=rank)
    if as_json:
        click.echo(to_json({"run": str(path), **again.to_object()}, indent=1))
    else:
        click.echo(rerun_text(again, run=path, builder=builder))
    sys.exit(1 if again.is_bad else 0)
