"""Settings of `roundoff train` as a subject of trials."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from roundoff.errors import LossScaleError
from roundoff.experiments.steering import steered
from roundoff.experiments.task import Task
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.runs import Metrics, to_json
from roundoff.train.config import TrainConfig

_NOT_OF_THE_TRAINING = ("runs", "name", "resume", "save_every", "tensorboard", "eval_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSubject:
    """A training by the reference trainer; each trial runs `train(config)` in its process."""

    config: TrainConfig
    with_rules: bool = False
    """Watch each trial and diagnose it: for judges that ask for findings."""
    words: tuple[str, ...] = ()
    """The options as they were given; none if only the settings are known."""

    @property
    def name(self) -> str:
        """The command as it was given, or with the settings that are not the usual ones."""
        if self.words:
            return shlex.join(["roundoff", "train", *self.words])
        usual = TrainConfig()
        words = ["roundoff", "train"]
        for field in fields(TrainConfig):
            value = getattr(self.config, field.name)
            if field.name not in _NOT_OF_THE_TRAINING and value != getattr(usual, field.name):
                words += _option(field.name, value)
        return shlex.join(words)

    @property
    def fingerprint(self) -> str:
        """A hash of the settings, and of what the recipe is today."""
        from roundoff.precision import find_recipe
        from roundoff.precision.recipe_toml import to_toml

        settings = {key: value for key, value in self.config.to_object().items() if key not in _NOT_OF_THE_TRAINING}
        text = to_json({**settings, "recipe": to_toml(find_recipe(self.config.recipe))})
        return hashlib.sha256(text.encode()).hexdigest()

    def task(self, setting: Setting, *, folder: Path) -> Task:
        """Return the call that trains once, changed by the setting."""
        trial = TrainTrial(config=self.config, setting=setting, folder=folder.absolute(), with_rules=self.with_rules)
        return Task(name=folder.name, call=try_training, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTrial:
    """One training, as it is sent to its process."""

    config: TrainConfig
    setting: Setting
    folder: Path
    with_rules: bool


def try_training(trial: TrainTrial) -> TrialResult:
    """Train once. A loss scale that gives up is an ending with exit code 1; any other error is raised."""
    # Imported here: whoever only names a training needs no torch.
    from roundoff.switches import switched, switches_in_environment
    from roundoff.train.trainer import train

    trial.folder.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []

    def on_step(metrics: Metrics) -> None:
        losses.append(float("nan") if metrics.loss is None else metrics.loss)

    config = config_of(trial.config, trial.setting)
    in_this_process = config.procs == 1
    with steered(trial.setting, folder=trial.folder), switched(switches_in_environment()), _watched(trial):
        try:
            result = train(config, on_step=on_step if in_this_process else None)
        except LossScaleError:
            return _result(trial, losses=tuple(losses), exit_code=1)
    return _result(trial, losses=result.losses, eval_loss=result.eval_loss, accuracy=result.top1)


def config_of(config: TrainConfig, setting: Setting) -> TrainConfig:
    """Return the settings of one trial; it writes no run of its own."""
    changes: dict[str, Any] = {name: None for name in ("runs", "name", "tensorboard", "save_every")}
    if setting.recipe is not None:
        changes["recipe"] = setting.recipe
    if setting.seed is not None:
        changes["seed"] = setting.seed
    if setting.steps is not None:
        changes["steps"] = setting.steps
    return replace(config, **changes)


def _watched(trial: TrainTrial) -> contextlib.AbstractContextManager[object]:
    """Return the watch over a trial whose findings are wanted."""
    if not trial.with_rules:
        return contextlib.nullcontext()
    from roundoff.experiments.trial_runs import empty_run_folder
    from roundoff.watch.watching import watching

    return watching(to=empty_run_folder(trial.folder))


def _result(trial: TrainTrial, **measured: Any) -> TrialResult:
    rules: tuple[str, ...] = ()
    if trial.with_rules:
        from roundoff.experiments.trial_runs import RUN_NAME, rules_found_in

        rules = rules_found_in(trial.folder / RUN_NAME)
    return TrialResult(**measured, rules=rules, folder=trial.folder)


def _option(name: str, value: Any) -> list[str]:
    """Write a setting as the command line takes it."""
    if name == "lr_scaling":
        return ["--no-lr-scaling"]
    option = f"--{name.replace('_seconds', '').replace('_', '-')}"
    if value is True:
        return [option]
    return [option, ",".join(value) if isinstance(value, tuple) else "none" if value is None else str(value)]
