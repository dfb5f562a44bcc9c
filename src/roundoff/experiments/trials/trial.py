"""One trial of a training: what it changes, and its result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from roundoff.experiments.engine.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """What one trial changes; everything else stays as in the training."""

    recipe: str | None = None
    """A name or a TOML file that replaces the training's own recipe; None keeps that one."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Formats of single sites (`blocks.1.attn`) or ops (`blocks.1.attn:softmax`), which override the recipe."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Switches, as `roundoff.switches` takes them: {"substitute": "fp64", ...}."""
    seed: int | None = None
    """None keeps the training's own."""
    steps: int | None = None
    """Stop after this many steps; None keeps the training's own length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The result of one trial, as far as this kind of training reports it."""

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
    """The folder of its run or its log."""

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step whose loss was NaN or infinite."""
        return next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), None)

    @property
    def is_finite(self) -> bool:
        """Whether every loss, and the evaluation, is a number."""
        return self.first_nonfinite_step is None and math.isfinite(self.eval_loss or 0.0)


class TrialTarget(Protocol):
    """A training that can be run repeatedly: settings of `roundoff train`, a script, or any command."""

    @property
    def name(self) -> str:
        """What a user would type: `roundoff train --recipe half`, `train.py --epochs 3`."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal trainings, so that a search only resumes with the same one."""

    def task(self, setting: TrialSetting, *, folder: Path) -> Task:
        """Return the task that runs one trial, writes into `folder`, and returns a `TrialResult`."""
