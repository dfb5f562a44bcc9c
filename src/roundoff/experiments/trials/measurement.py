"""Measures one step of a training, in a process of its own that ends with the step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from roundoff.errors import PlanError
from roundoff.experiments.engine.task import Task
from roundoff.experiments.trials.targets import ScriptTarget, TrainTarget, trial_config
from roundoff.experiments.trials.trial import TrialSetting, TrialTarget
from roundoff.experiments.trials.trial_environment import APPLIED_NAME, steering_environment
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured step, and whether a recipe reaches the training."""

    sensitivity: Sensitivity
    applies_recipes: bool
    """False for a script that never calls `apply_recipe`: its plan can be made, and not tried."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return {"applies_recipes": self.applies_recipes, "step": self.sensitivity.to_object()}

    @classmethod
    def from_object(cls, data: Mapping[str, Any]) -> Self:
        """Return the value that `to_object` wrote."""
        return cls(sensitivity=Sensitivity.from_object(data["step"]), applies_recipes=bool(data["applies_recipes"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRequest:
    """One training that is to be measured, as it is sent to its process."""

    subject: TrialTarget
    formats: tuple[str, ...]
    step: int
    folder: Path


def measurement_task(subject: TrialTarget, *, formats: tuple[str, ...], step: int, folder: Path) -> Task:
    """Return the call that measures one step of a training in fp32, and whose value is a `Measurement`."""
    if not isinstance(subject, TrainTarget | ScriptTarget):
        raise PlanError.explain(
            f"`{subject.name}` cannot be measured.",
            why="a plan looks into one step, and a command can only be asked for its exit status.",
            fix="name a script (roundoff plan train.py ...) or settings of roundoff train.",
        )
    trial = MeasurementRequest(subject=subject, formats=formats, step=step, folder=folder.absolute())
    return Task(name="measuring", call=run_measurement, argument=trial, log=folder / "log.txt")


def run_measurement(trial: MeasurementRequest) -> Measurement:
    """Train in fp32 up to the step, and return what was measured in it.

    Raises:
        PlanError: the training failed before.
        SensitivityError: it never came to that step, or it cannot be measured.
    """
    from roundoff.sensitivity.measuring import measuring_sensitivity

    trial.folder.mkdir(parents=True, exist_ok=True)
    setting = TrialSetting(recipe="fp32", steps=trial.step + 2)  # a step closes when the next one begins
    ending = _EarlyExit()
    with (
        steering_environment(setting, folder=trial.folder),
        measuring_sensitivity(step=trial.step, formats=trial.formats, on_done=ending.leave) as measured,
    ):
        code = _train_until_measured(trial.subject, setting)
        ending.has_left = True
    if code and not measured.sensitivities:
        raise PlanError.explain(
            f"`{trial.subject.name}` fails in fp32 before step {trial.step} is over.",
            why=f"it ended with exit code {code}; its output: {trial.folder / 'log.txt'}",
            fix="see that it runs by itself.",
        )
    return Measurement(sensitivity=measured.sensitivity, applies_recipes=(trial.folder / APPLIED_NAME).exists())


def _train_until_measured(subject: TrialTarget, setting: TrialSetting) -> int:
    if isinstance(subject, TrainTarget):
        from roundoff.train.trainer import train

        with contextlib.suppress(SystemExit):
            train(trial_config(subject.config, setting))
        return 0
    assert isinstance(subject, ScriptTarget)
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script

    repeating = repeatable(seed=subject.seed, deterministic=False, repeat_batch=False)
    with contextlib.chdir(subject.working_folder), repeating:
        return run_script(subject.script)


class _EarlyExit:
    """Ends a training as soon as all that is wanted of it is known."""

    def __init__(self) -> None:
        self.has_left = False

    def leave(self, _: Sensitivity) -> None:
        """End the training, unless it has ended by itself."""
        if not self.has_left:
            raise SystemExit(0)
