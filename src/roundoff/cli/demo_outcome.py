"""What the demo came to: the accuracies of three trainings side by side, and where to look on."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roundoff.cli.demo_chapters import PAGE, PLANNED, SCRIPT
from roundoff.cli.demo_stage import Played
from roundoff.cli.screen import columns
from roundoff.runs import Finding, JsonValue, Run

_ACCURACY = re.compile(r"accuracy (\d+\.\d) %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
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
class Outcome:
    """All that the demo has shown."""

    folder: Path
    trained: tuple[Trained, ...]
    finding: Finding
    """Why the training in half precision broke."""
    played: tuple[Played, ...]
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


def outcome_of(folder: Path, played: Sequence[Played], *, seconds: float) -> Outcome:
    """Read the outcome from what the commands printed, and from the runs they left."""
    finding, *_ = Run.open(folder / "runs" / "half").findings() or []
    trainings = [each for each in played if each.chapter.words[0] == "run"]
    return Outcome(
        folder=folder,
        trained=tuple(_trained(folder, each) for each in trainings),
        finding=finding,
        played=tuple(played),
        seconds=seconds,
    )


def _trained(folder: Path, played: Played) -> Trained:
    _, _, name, _, recipe = played.chapter.words
    accuracy = _ACCURACY.search("\n".join(played.output))
    assert accuracy is not None, f"{SCRIPT} prints its accuracy"
    metrics = Run.open(folder / "runs" / name).metrics()
    return Trained(
        recipe=recipe,
        accuracy=float(accuracy[1]) / 100,
        losses=tuple(each.loss for each in metrics if each.loss is not None),
    )


def outcome_text(outcome: Outcome, *, drawn: bool) -> str:
    """Lay out the accuracies side by side, with a curve of each loss if it is to be drawn."""
    finding = outcome.finding
    width = max(len(each.recipe) for each in outcome.trained)
    verdict = f"{SCRIPT} broke at {finding.source}, step {finding.step}: {finding.title}. The planned recipe mends it."
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


def _line(each: Trained, *, width: int, drawn: bool) -> str:
    from roundoff.report.sparkline import sparkline

    bad = each.first_nonfinite_step
    ended = f"{each.losses[0]:.2f} to {each.losses[-1]:.3f}" if bad is None else f"NaN from step {bad} on"
    room = columns() - width - len("  100.0 %    NaN from step 1000 on")
    curve = f"{sparkline(each.losses, width=max(1, min(40, room)), low=0.0)}  " if drawn else ""
    return f"{each.recipe.ljust(width)}  {100 * each.accuracy:6.1f} %  {curve}{ended}"
