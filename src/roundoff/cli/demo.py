"""`roundoff demo`: a training breaks in half precision, is explained, and is mended, by commands anybody can type."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import click

from roundoff.cli.demo_chapters import SCRIPT, STORY
from roundoff.cli.demo_outcome import outcome_of, outcome_text
from roundoff.cli.demo_stage import Stage
from roundoff.cli.screen import can_draw
from roundoff.errors import UsageError


@click.command(name="demo", epilog="Example: roundoff demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new folder for everything it makes.  [default: runs/demo-1, runs/demo-2, ...]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what came of it as JSON.")
def demo_command(out: Path | None, as_json: bool) -> None:
    """Train handwritten digits in fp32 and in fp16, where they break; find out why, plan a recipe, and train with it.

    Every step is a command that is shown before it is run; all of them run in one new folder, in about a minute.
    """
    from roundoff.runs import to_json

    folder = _made(out)
    began = time.monotonic()
    with Stage(folder, STORY, quiet=as_json) as stage:
        stage.say(f"Seven commands, run in {folder}, where {SCRIPT} is and everything they leave.\n")
        try:
            played = stage.play()
        except KeyboardInterrupt:
            click.echo(f"interrupted; what there is so far is in {folder}", err=True)
            raise
    outcome = outcome_of(folder, played, seconds=time.monotonic() - began)
    click.echo(to_json(outcome.to_object(), indent=1) if as_json else outcome_text(outcome, drawn=can_draw(sys.stdout)))


def _made(out: Path | None) -> Path:
    """Make the folder, with the script in it."""
    from roundoff.runs import next_free_name

    folder = next_free_name(Path("runs"), "demo") if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError.explain(
                f"'{folder}' is not empty.", why="the demo keeps to a folder of its own.", fix="name another: --out DIR"
            )
        shutil.copyfile(Path(__file__).with_name("demo_script.py"), folder / SCRIPT)
    except OSError as error:
        raise UsageError.explain(
            f"'{folder}' cannot be made.", why=f"{error.strerror}.", fix="name another: --out DIR"
        ) from error
    return folder
