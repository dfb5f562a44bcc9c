"""The trainings that trials can run: settings of `roundoff train`, a script that calls `apply_recipe`, any command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from roundoff.errors import BisectError, LossScaleError
from roundoff.experiments.engine.task import Task
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.experiments.trials.trial_environment import environment_variables, steering_environment
from roundoff.record.script import Script
from roundoff.runs import Metrics, to_json
from roundoff.train.config import TrainConfig

_NOT_STARTED = (126, 127)
"""The exit codes of a shell that cannot run a command: they say nothing about the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTarget:
    """A command; each trial runs it with `ROUNDOFF_OVERRIDES` and `ROUNDOFF_SITES` set."""

    words: tuple[str, ...]
    working_folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """What a user would type."""
        return shlex.join(self.words)

    @property
    def fingerprint(self) -> str:
        """A hash of the command and of the present contents of the files it names."""
        files = [path for word in self.words if (path := self.working_folder / word).is_file()]
        texts = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
        return hashlib.sha256(self.name.encode() + b"\n" + texts).hexdigest()

    def task(self, setting: TrialSetting, *, folder: Path) -> Task:
        """Return the task that runs the command once, changed by the setting."""
        trial = CommandTrial(target=self, setting=setting, folder=folder.absolute())
        return Task(name=folder.name, call=run_command_trial, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTrial:
    """One run of a command, as it is sent to its process."""

    target: CommandTarget
    setting: TrialSetting
    folder: Path


def run_command_trial(trial: CommandTrial) -> TrialResult:
    """Run the command once; a signal that ends it counts as exit code 128 plus its number, as in a shell."""
    from roundoff.watch.process.ipc import die_with_parent

    target, parent = trial.target, os.getpid()
    trial.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **environment_variables(trial.setting, folder=trial.folder)}
    try:
        ended = subprocess.run(
            target.words,
            env=environment,
            cwd=target.working_folder,
            check=False,
            preexec_fn=lambda: die_with_parent(parent),
        )
    except OSError as error:
        raise _not_started(target, f"{error.strerror}.") from error
    if ended.returncode in _NOT_STARTED:
        raise _not_started(target, f"it ended with {ended.returncode}, the exit code of a shell that finds no command.")
    code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    return TrialResult(exit_code=code, folder=trial.folder)


def _not_started(target: CommandTarget, why: str) -> BisectError:
    return BisectError.explain(
        f"The command '{target.name}' cannot be run.", why=why, fix="name a program, with its path if necessary."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTarget:
    """A script or a module and its arguments; each trial runs it as the main program of a new process."""

    script: Script
    with_rules: bool = False
    """Diagnose each trial, for judges that need findings."""
    seed: int | None = 0
    """The seed of every random generator before the script starts, unless a setting has another one."""
    working_folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """What a user would type."""
        return shlex.join(self.script.command[1:])

    @property
    def fingerprint(self) -> str:
        """A hash of the command and of the present contents of the script."""
        path = self.working_folder / self.script.target
        text = path.read_bytes() if not self.script.is_module and path.is_file() else b""
        return hashlib.sha256(f"{self.name}\n{self.seed}\n".encode() + text).hexdigest()

    def task(self, setting: TrialSetting, *, folder: Path) -> Task:
        """Return the task that runs the script once, changed by the setting."""
        trial = ScriptTrial(target=self, setting=setting, folder=folder.absolute())
        return Task(name=folder.name, call=run_script_trial, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrial:
    """One run of a script, as it is sent to its process."""

    target: ScriptTarget
    setting: TrialSetting
    folder: Path


def run_script_trial(trial: ScriptTrial) -> TrialResult:
    """Run the script once and return its result; an exception counts as exit code 1 and is in the log."""
    # Imported here: naming a script needs no torch.
    from roundoff.experiments.trials.watched_trial import (
        empty_run_folder,
        result_of_run,
        shifting_seeds,
        watch_settings,
    )
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script
    from roundoff.switches import switched, switches_in_environment
    from roundoff.watch.process.process_guard import ProcessGuard
    from roundoff.watch.watching import start_watching

    target, setting = trial.target, trial.setting
    seed = target.seed if setting.seed is None else setting.seed
    run_folder = empty_run_folder(trial.folder)
    guard = ProcessGuard()
    try:
        with contextlib.chdir(target.working_folder), steering_environment(setting, folder=trial.folder):
            watch = start_watching(
                to=run_folder,
                settings=watch_settings(with_rules=target.with_rules),
                command=target.script.command,
                seed=seed,
                guard=guard,
            )
            repeating = repeatable(seed=seed, deterministic=False, repeat_batch=False)
            switching = switched(switches_in_environment())
            shifting = shifting_seeds((seed or 0) - (target.seed or 0))
            with watch.running(), ending_after(setting.steps, of=watch), repeating, shifting, switching:
                code = int(run_script(target.script, on_error=watch.note_exception))  # sys.exit(True) gives True
                watch.training_failed = code != 0
    finally:
        guard.close()
    return result_of_run(run_folder, exit_code=code, with_rules=target.with_rules)


@contextlib.contextmanager
def ending_after(num_steps: int | None, *, of: Any) -> Iterator[None]:
    """End the script, as `sys.exit(0)` would, when it starts one step more than `num_steps`; None: never."""
    if num_steps is None:
        yield
        return
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    def leave_if_done(*_: object) -> None:
        # The watch's own hook ran first, so it has already closed the previous step if this forward starts a new one.
        if torch.is_grad_enabled() and of.step >= num_steps:
            raise SystemExit(0)

    hook = register_module_forward_pre_hook(leave_if_done)
    try:
        yield
    finally:
        hook.remove()


_SETTINGS_OF_THE_RUN = ("runs", "name", "resume", "save_every", "tensorboard", "eval_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTarget:
    """A training by the reference trainer; each trial runs `train(config)` in its own process."""

    config: TrainConfig
    with_rules: bool = False
    """Watch and diagnose each trial, for judges that need findings."""
    words: tuple[str, ...] = ()
    """The options as the user gave them; empty if only the settings are known."""

    @property
    def name(self) -> str:
        """The command as the user gave it, or with the settings that differ from the defaults."""
        if self.words:
            return shlex.join(["roundoff", "train", *self.words])
        usual = TrainConfig()
        words = ["roundoff", "train"]
        for setting in fields(TrainConfig):
            value = getattr(self.config, setting.name)
            if setting.name not in _SETTINGS_OF_THE_RUN and value != getattr(usual, setting.name):
                words += _option(setting.name, value)
        return shlex.join(words)

    @property
    def fingerprint(self) -> str:
        """A hash of the settings and of the present contents of the recipe."""
        from roundoff.precision import find_recipe
        from roundoff.precision.recipe.toml import to_toml

        settings = {key: value for key, value in self.config.to_object().items() if key not in _SETTINGS_OF_THE_RUN}
        text = to_json({**settings, "recipe": to_toml(find_recipe(self.config.recipe))})
        return hashlib.sha256(text.encode()).hexdigest()

    def task(self, setting: TrialSetting, *, folder: Path) -> Task:
        """Return the task that trains once, changed by the setting."""
        trial = TrainTrial(config=self.config, setting=setting, folder=folder.absolute(), with_rules=self.with_rules)
        return Task(name=folder.name, call=run_training_trial, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTrial:
    """One training, as it is sent to its process."""

    config: TrainConfig
    setting: TrialSetting
    folder: Path
    with_rules: bool


def run_training_trial(trial: TrainTrial) -> TrialResult:
    """Train once. A loss scale that gives up counts as exit code 1; any other error is raised."""
    # Imported here: naming a training needs no torch.
    from roundoff.switches import switched, switches_in_environment
    from roundoff.train.trainer import train

    trial.folder.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []

    def on_step(metrics: Metrics) -> None:
        losses.append(float("nan") if metrics.loss is None else metrics.loss)

    config = trial_config(trial.config, trial.setting)
    in_this_process = config.procs == 1
    with (
        steering_environment(trial.setting, folder=trial.folder),
        switched(switches_in_environment()),
        _watch_for_findings(trial),
    ):
        try:
            result = train(config, on_step=on_step if in_this_process else None)
        except LossScaleError:
            return _make_result(trial, losses=tuple(losses), exit_code=1)
    return _make_result(trial, losses=result.losses, eval_loss=result.eval_loss, accuracy=result.top1)


def trial_config(config: TrainConfig, setting: TrialSetting) -> TrainConfig:
    """Return the settings of one trial, which writes no run folder."""
    changes: dict[str, Any] = {name: None for name in ("runs", "name", "tensorboard", "save_every")}
    if setting.recipe is not None:
        changes["recipe"] = setting.recipe
    if setting.seed is not None:
        changes["seed"] = setting.seed
    if setting.steps is not None:
        changes["steps"] = setting.steps
    return replace(config, **changes)


def _watch_for_findings(trial: TrainTrial) -> contextlib.AbstractContextManager[object]:
    """Return the watch over a trial that needs findings, or a block that does nothing."""
    if not trial.with_rules:
        return contextlib.nullcontext()
    from roundoff.experiments.trials.watched_trial import empty_run_folder
    from roundoff.watch.watching import watching

    return watching(to=empty_run_folder(trial.folder))


def _make_result(trial: TrainTrial, **measured: Any) -> TrialResult:
    rules: tuple[str, ...] = ()
    if trial.with_rules:
        from roundoff.experiments.trials.watched_trial import RUN_NAME, rules_found_in

        rules = rules_found_in(trial.folder / RUN_NAME)
    return TrialResult(**measured, rules=rules, folder=trial.folder)


def _option(name: str, value: Any) -> list[str]:
    """Write a setting as a command-line option."""
    if name == "lr_scaling":
        return ["--no-lr-scaling"]
    option = f"--{name.replace('_seconds', '').replace('_', '-')}"
    if value is True:
        return [option]
    return [option, ",".join(value) if isinstance(value, tuple) else "none" if value is None else str(value)]
