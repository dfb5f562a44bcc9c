"""One trial of a training: what it changes, the environment variables that say so, and its result."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from roundoff.experiments.engine.process_pool import Task
from roundoff.precision.recipe.recipe_environment import APPLIED_VARIABLE
from roundoff.precision.recipe.site_formats import OVERRIDES_VARIABLE, overrides_in_environment
from roundoff.runs import Run
from roundoff.switches import SWITCHES_VARIABLE, switches_in_environment
from roundoff.watch.settings import WatchSettings


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


_RECIPE, _SITES = "ROUNDOFF_RECIPE", "ROUNDOFF_SITES"
APPLIED_NAME = "applied.jsonl"
"""The file in the folder of a trial in which `apply_recipe` records what it applied."""


def environment_variables(setting: TrialSetting, *, folder: Path) -> dict[str, str]:
    """Return the environment variables that tell a process what a setting changes.

    `ROUNDOFF_SITES` holds the sites of the overrides, separated by commas, for commands that do not read JSON.
    Overrides and switches in the environment of this process belong to the training and are kept.
    """
    variables = {
        APPLIED_VARIABLE: str(folder / APPLIED_NAME),
        OVERRIDES_VARIABLE: json.dumps({**overrides_in_environment(), **setting.overrides}),
        _SITES: ",".join(setting.overrides),
    }
    if setting.recipe is not None:
        variables[_RECIPE] = setting.recipe
    if setting.switches:
        variables[SWITCHES_VARIABLE] = json.dumps({**switches_in_environment(), **setting.switches})
    return variables


@contextlib.contextmanager
def steering_environment(setting: TrialSetting, *, folder: Path) -> Iterator[None]:
    """Set the variables of a setting in this process's environment inside the block, and restore them after it.

    What an earlier attempt recorded in the same folder is removed.
    """
    (folder / APPLIED_NAME).unlink(missing_ok=True)
    with changing_environment(environment_variables(setting, folder=folder)):
        yield


@contextlib.contextmanager
def changing_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment inside the block, and restore them after it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def shifting_seeds(by: int) -> Iterator[None]:
    """Add `by` to every integer seed that the script gives to Python, numpy and torch inside the block.

    This shows the noise of a script that sets its own seed. Generator objects that the script makes itself
    (`torch.Generator`, `numpy.random.default_rng`) are left alone.
    """
    if not by:
        yield
        return
    import numpy as np
    import torch

    places: list[tuple[Any, str]] = [
        (random, "seed"),
        (np.random, "seed"),
        (torch, "manual_seed"),
        (torch.random, "manual_seed"),
    ]
    with contextlib.ExitStack() as restoring:
        for module, name in places:
            original = getattr(module, name)
            restoring.callback(setattr, module, name, original)
            setattr(module, name, _shift_seed(original, by))
        yield


def _shift_seed(seed: Callable[..., Any], by: int) -> Callable[..., Any]:
    @functools.wraps(seed)
    def seed_with_another(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], int):
            args = ((args[0] + by) % 2**32, *args[1:])
        kwargs = {key: (value + by) % 2**32 if isinstance(value, int) else value for key, value in kwargs.items()}
        return seed(*args, **kwargs)

    return seed_with_another


RUN_NAME = "run"
"""The name of the run folder inside the folder of a trial."""


def empty_run_folder(trial_folder: Path) -> Path:
    """Create the folder of a trial and return where its run goes; what an interrupted attempt left there is removed."""
    run_folder = trial_folder / RUN_NAME
    shutil.rmtree(run_folder, ignore_errors=True)
    trial_folder.mkdir(parents=True, exist_ok=True)
    return run_folder


def watch_settings(*, with_rules: bool) -> WatchSettings:
    """Return how a trial is watched: only its losses, or everything that the rules need."""
    if with_rules:
        return WatchSettings()
    return WatchSettings(full_steps=0, recorded_steps=(), probe_seconds=0.0, max_replays=0)


def rules_found_in(run_folder: Path) -> tuple[str, ...]:
    """Diagnose a run, and return the codes of its findings, the verdict first."""
    # Imported here: most trials are judged by their losses.
    from roundoff.diagnose import diagnose_and_save

    run = Run.open(run_folder)
    diagnosis = diagnose_and_save(run)
    return tuple(finding.rule for finding in diagnosis.findings)


def result_of_run(run_folder: Path, *, exit_code: int, with_rules: bool) -> TrialResult:
    """Return the result of a script that was run under a watch."""
    metrics = Run.open(run_folder).metrics()
    eval_losses = [step.eval_loss for step in metrics if step.eval_loss is not None]
    return TrialResult(
        losses=tuple(step.loss for step in metrics if step.loss is not None),
        eval_loss=eval_losses[-1] if eval_losses else None,
        exit_code=exit_code,
        rules=rules_found_in(run_folder) if with_rules else (),
        folder=run_folder.parent,
    )
