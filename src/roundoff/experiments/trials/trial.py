"""One trial of a training: what is changed about it, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from roundoff.experiments.engine.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """What one trial changes; everything else stays as the training has it."""

    recipe: str | None = None
    """A name or a TOML file that takes the place of the training's own recipe; None leaves that."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Formats of single sites (`blocks.1.attn`) or ops (`blocks.1.attn:softmax`), over those of the recipe."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Switches other than formats, as `roundoff.switches` takes them: {"substitute": "fp64", ...}."""
    seed: int | None = None
    """None: the training's own."""
    steps: int | None = None
    """End after so many steps; None: the training's own length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What came of one trial, as far as this kind of training tells."""

    losses: tuple[float, ...] = ()
    """The loss of every step."""
    eval_loss: float | None = None
    """The last evaluation's."""
    accuracy: float | None = None
    """Of the last evaluation, from 0 to 1."""
    exit_code: int = 0
    rules: tuple[str, ...] = ()
    """The codes of the findings, the verdict first."""
    folder: Path | None = None
    """Where its run or its log is."""

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step whose loss was NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)

    @property
    def is_finite(self) -> bool:
        """Whether every loss, and the evaluation, is a number."""
        return self.first_nonfinite_step is None and math.isfinite(self.eval_loss or 0.0)


class TrialTarget(Protocol):
    """A training that can be tried again and again: settings of `roundoff train`, a script, or any command."""

    @property
    def name(self) -> str:
        """What to call it: `roundoff train --recipe half`, `train.py --epochs 3`."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal trainings, so that a search that goes on asks about the same one."""

    def task(self, setting: TrialSetting, *, folder: Path) -> Task:
        """Return the call that makes one trial, writes into `folder`, and whose value is a `TrialResult`."""
