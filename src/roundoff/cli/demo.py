"""`roundoff demo`: a training fails in half precision, is explained, and is fixed, by commands that anyone can run."""

from __future__ import annotations

import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from roundoff.cli.console.options import json_option
from roundoff.cli.console.screen import can_draw, columns
from roundoff.cli.demo_player import PAGE, PLANNED, SCRIPT, STORY, DemoPlayer, PlayedChapter
from roundoff.errors import UsageError
from roundoff.runs import Finding, JsonValue, Run

_ACCURACY = re.compile(r"accuracy (\d+\.\d) %")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTraining:
    """One of the trainings."""

    recipe: str
    accuracy: float
    """The share of the digits it had not seen that it reads."""
    losses: tuple[float, ...]
    """Of every step."""

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step whose loss is NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """All that the demo has shown."""

    folder: Path
    trained: tuple[DemoTraining, ...]
    finding: Finding
    """Why the training in half precision broke."""
    played: tuple[PlayedChapter, ...]
    seconds: float

    def to_object(self) -> dict[str, JsonValue]:
        """Return it as JSON values."""
        return {
            "folder": str(self.folder),
            "page": str(self.folder / PAGE),
            "recipe": str(self.folder / PLANNED),
            "trainings": [
                {
                    "recipe": each.recipe,
                    "accuracy": each.accuracy,
                    "last_loss": each.losses[-1],
                    "first_nonfinite_step": each.first_nonfinite_step,
                }
                for each in self.trained
            ],
            "finding": self.finding.to_object(),
            "commands": [
                {"command": each.command, "exit_code": each.chapter.ends_with, "seconds": round(each.seconds, 2)}
                for each in self.played
            ],
            "seconds": round(self.seconds, 2),
        }


def read_demo_result(folder: Path, played: Sequence[PlayedChapter], *, seconds: float) -> DemoResult:
    """Read the outcome from what the commands printed, and from the runs they left."""
    finding, *_ = Run.open(folder / "runs" / "half").findings() or []
    trainings = [each for each in played if each.chapter.words[0] == "run"]
    return DemoResult(
        folder=folder,
        trained=tuple(_read_training(folder, each) for each in trainings),
        finding=finding,
        played=tuple(played),
        seconds=seconds,
    )


def _read_training(folder: Path, played: PlayedChapter) -> DemoTraining:
    _, _, name, _, recipe = played.chapter.words
    accuracy = _ACCURACY.search("\n".join(played.output))
    assert accuracy is not None, f"{SCRIPT} prints its accuracy"
    metrics = Run.open(folder / "runs" / name).metrics()
    return DemoTraining(
        recipe=recipe,
        accuracy=float(accuracy[1]) / 100,
        losses=tuple(each.loss for each in metrics if each.loss is not None),
    )


def demo_result_text(outcome: DemoResult, *, drawn: bool) -> str:
    """Lay out the accuracies side by side, with a curve of each loss if it is to be drawn."""
    finding = outcome.finding
    width = max(len(each.recipe) for each in outcome.trained)
    verdict = f"{SCRIPT} broke at {finding.source}, step {finding.step}: {finding.title}. The planned recipe fixes it."
    return "\n".join([
        *textwrap.wrap(verdict, columns()),
        "",
        f"{'recipe'.ljust(width)}  accuracy  loss",
        *(_line(each, width=width, drawn=drawn) for each in outcome.trained),
        "",
        f"page    {outcome.folder / PAGE}",
        f"recipe  {outcome.folder / PLANNED}",
        f"took    {outcome.seconds:.0f} s",
        "next    roundoff run train.py, with a script of yours",
    ])  # fmt: skip


def _line(each: DemoTraining, *, width: int, drawn: bool) -> str:
    from roundoff.report.sparkline import sparkline

    bad = each.first_nonfinite_step
    ended = f"{each.losses[0]:.2f} to {each.losses[-1]:.3f}" if bad is None else f"NaN from step {bad} on"
    room = columns() - width - len("  100.0 %    NaN from step 1000 on")
    curve = f"{sparkline(each.losses, width=max(1, min(40, room)), low=0.0)}  " if drawn else ""
    return f"{each.recipe.ljust(width)}  {100 * each.accuracy:6.1f} %  {curve}{ended}"


@click.command(name="demo", epilog="Example: roundoff demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A new directory for all files.  [default: runs/demo-1, runs/demo-2, ...]",
)
@json_option("Print what came of it as JSON.")
def demo_command(out: Path | None, as_json: bool) -> None:
    """Train on handwritten digits in fp32 and in fp16, which fails; find out why, plan a recipe, and train with it.

    Each step is a command, which is shown before it runs. All of them run in one new directory, in about a minute.
    """
    from roundoff.runs import to_json

    folder = make_demo_folder(out)
    began = time.monotonic()
    with DemoPlayer(folder, STORY, quiet=as_json) as stage:
        stage.say(f"Seven commands, run in {folder}, where {SCRIPT} is and everything they leave.\n")
        try:
            played = stage.play()
        except KeyboardInterrupt:
            click.echo(f"interrupted; what there is so far is in {folder}", err=True)
            raise
    outcome = read_demo_result(folder, played, seconds=time.monotonic() - began)
    click.echo(
        to_json(outcome.to_object(), indent=1) if as_json else demo_result_text(outcome, drawn=can_draw(sys.stdout))
    )


def make_demo_folder(out: Path | None) -> Path:
    """Make the folder, with the script in it."""
    from roundoff.runs import next_free_name

    folder = next_free_name(Path("runs"), "demo") if out is None else out
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError.explain(
                f"'{folder}' is not empty.", why="the demo needs an empty directory.", fix="name another: --out DIR"
            )
        shutil.copyfile(Path(__file__).with_name("demo_script.py"), folder / SCRIPT)
    except OSError as error:
        raise UsageError.explain(
            f"'{folder}' cannot be made.", why=f"{error.strerror}.", fix="name another: --out DIR"
        ) from error
    return folder
