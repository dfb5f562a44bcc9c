"""Measures one step of a training, in its own process, which ends with the step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from roundoff.errors import PlanError
from roundoff.experiments.engine.process_pool import Task
from roundoff.experiments.trials.targets import ScriptTarget, TrainTarget, trial_config, trial_task
from roundoff.experiments.trials.trial import APPLIED_NAME, TrialSetting, TrialTarget, steering_environment
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured step, and whether recipes can be applied to the training."""

    sensitivity: Sensitivity
    applies_recipes: bool
    """False for a script that never calls `apply_recipe`: its plan can be made, but not verified."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return everything as JSON values."""
        return {"applies_recipes": self.applies_recipes, "step": self.sensitivity.to_object()}

    @classmethod
    def from_object(cls, data: Mapping[str, Any]) -> Self:
        """Return the value that `to_object` wrote."""
        return cls(sensitivity=Sensitivity.from_object(data["step"]), applies_recipes=bool(data["applies_recipes"]))


def measurement_task(target: TrialTarget, *, formats: tuple[str, ...], step: int, folder: Path) -> Task:
    """Return the task that measures one step of a training in fp32, and returns a `Measurement`."""
    if not isinstance(target, TrainTarget | ScriptTarget):
        raise PlanError.explain(
            f"`{target.name}` cannot be measured.",
            why="a plan measures one step, and of a command only the exit status is known.",
            fix="name a script (roundoff plan train.py ...) or settings of roundoff train.",
        )
    return trial_task(partial(run_measurement, target, formats, step), folder)


def run_measurement(
    target: TrainTarget | ScriptTarget, formats: tuple[str, ...], step: int, folder: Path
) -> Measurement:
    """Train in fp32 up to the step, and return its measurement.

    Raises:
        PlanError: the training failed before that step.
        SensitivityError: it never reached that step, or the step cannot be measured.
    """
    from roundoff.sensitivity.measuring import measuring_sensitivity

    folder.mkdir(parents=True, exist_ok=True)
    setting = TrialSetting(recipe="fp32", steps=step + 2)  # a step closes when the next one begins
    ending = _EarlyExit()
    with (
        steering_environment(setting, folder=folder),
        measuring_sensitivity(step=step, formats=formats, on_done=ending.leave) as measured,
    ):
        code = _train_until_measured(target, setting)
        ending.has_left = True
    if code and not measured.sensitivities:
        raise PlanError.explain(
            f"`{target.name}` fails in fp32 before the end of step {step}.",
            why=f"it ended with exit code {code}; log: {folder / 'log.txt'}",
            fix="check that it runs on its own.",
        )
    return Measurement(sensitivity=measured.sensitivity, applies_recipes=(folder / APPLIED_NAME).exists())


def _train_until_measured(target: TrainTarget | ScriptTarget, setting: TrialSetting) -> int:
    if isinstance(target, TrainTarget):
        from roundoff.train.trainer import train

        with contextlib.suppress(SystemExit):
            train(trial_config(target.config, setting))
        return 0
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script

    repeating = repeatable(seed=target.seed, deterministic=False, repeat_batch=False)
    with contextlib.chdir(target.working_folder), repeating:
        return run_script(target.script)


class _EarlyExit:
    """Ends a training as soon as its step is measured."""

    def __init__(self) -> None:
        self.has_left = False

    def leave(self, _: Sensitivity) -> None:
        """End the training, unless it has already ended."""
        if not self.has_left:
            raise SystemExit(0)
