"""The trainings that trials can run: settings of `roundoff train`, a script that calls `apply_recipe`, any command."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from roundoff.errors import BisectError, LossScaleError
from roundoff.experiments.engine.process_pool import Task
from roundoff.experiments.trials.trial import (
    TrialResult,
    TrialSetting,
    TrialTarget,
    environment_variables,
    steering_environment,
)
from roundoff.record.script import Script
from roundoff.runs import Metrics, to_json
from roundoff.train.config import TrainConfig


def trial_task(run: Callable[[Path], Any], folder: Path) -> Task:
    """Return the task that calls `run` with the folder of a trial, which has the log as well."""
    return Task(name=folder.name, call=run, argument=folder.absolute(), log=folder / "log.txt")


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
        return trial_task(partial(run_command_trial, self, setting), folder)


def run_command_trial(target: CommandTarget, setting: TrialSetting, folder: Path) -> TrialResult:
    """Run the command once; a signal that ends it counts as exit code 128 plus its number, as in a shell."""
    from roundoff.watch.process.ipc import die_with_parent

    parent = os.getpid()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **environment_variables(setting, folder=folder)}
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
    return TrialResult(exit_code=code, folder=folder)


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
        return trial_task(partial(run_script_trial, self, setting), folder)


def run_script_trial(target: ScriptTarget, setting: TrialSetting, folder: Path) -> TrialResult:
    """Run the script once and return its result; an exception counts as exit code 1 and is in the log."""
    # Imported here: naming a script needs no torch.
    from roundoff.experiments.trials.trial import (
        empty_run_folder,
        result_of_run,
        shifting_seeds,
        watch_settings,
    )
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script
    from roundoff.switches import switches_in_environment, switching
    from roundoff.watch.process.supervise import ProcessGuard
    from roundoff.watch.watching import start_watching

    seed = target.seed if setting.seed is None else setting.seed
    run_folder = empty_run_folder(folder)
    guard = ProcessGuard()
    try:
        with contextlib.chdir(target.working_folder), steering_environment(setting, folder=folder):
            watch = start_watching(
                to=run_folder,
                settings=watch_settings(with_rules=target.with_rules),
                command=target.script.command,
                seed=seed,
                guard=guard,
            )
            repeating = repeatable(seed=seed, deterministic=False, repeat_batch=False)
            switched_on = switching(switches_in_environment())
            shifting = shifting_seeds((seed or 0) - (target.seed or 0))
            with watch.running(), ending_after(setting.steps, of=watch), repeating, shifting, switched_on:
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
        # The watch's own hook runs before this one or after it, so this forward may start a step that is not open yet.
        # Leaving must not wait for a module inside: torch does not call the hooks that end a recipe's rounding then.
        if torch.is_grad_enabled() and of.step + (of.clock.is_idle and of.clock.is_over) >= num_steps:
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
        return self.config.command(without=_SETTINGS_OF_THE_RUN)

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
        return trial_task(partial(run_training_trial, self, setting), folder)


def run_training_trial(target: TrainTarget, setting: TrialSetting, folder: Path) -> TrialResult:
    """Train once. A loss scale that gives up counts as exit code 1; any other error is raised."""
    # Imported here: naming a training needs no torch.
    from roundoff.switches import switches_in_environment, switching
    from roundoff.train.trainer import train

    folder.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []

    def on_step(metrics: Metrics) -> None:
        losses.append(float("nan") if metrics.loss is None else metrics.loss)

    config = trial_config(target.config, setting)
    in_this_process = config.procs == 1
    with (
        steering_environment(setting, folder=folder),
        switching(switches_in_environment()),
        _watch_for_findings(target, folder),
    ):
        try:
            result = train(config, on_step=on_step if in_this_process else None)
        except LossScaleError:
            return _make_result(target, folder, losses=tuple(losses), exit_code=1)
    return _make_result(target, folder, losses=result.losses, eval_loss=result.eval_loss, accuracy=result.top1)


def own_seed(target: TrialTarget) -> int:
    """Return the seed of a trial whose setting has none."""
    if isinstance(target, TrainTarget):
        return target.config.seed
    return (target.seed or 0) if isinstance(target, ScriptTarget) else 0


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


def _watch_for_findings(target: TrainTarget, folder: Path) -> contextlib.AbstractContextManager[object]:
    """Return the watch over a trial that needs findings, or a block that does nothing."""
    if not target.with_rules:
        return contextlib.nullcontext()
    from roundoff.experiments.trials.trial import empty_run_folder
    from roundoff.watch.watching import watching

    return watching(to=empty_run_folder(folder))


def _make_result(target: TrainTarget, folder: Path, **measured: Any) -> TrialResult:
    rules: tuple[str, ...] = ()
    if target.with_rules:
        from roundoff.experiments.trials.trial import RUN_NAME, rules_found_in

        rules = rules_found_in(folder / RUN_NAME)
    return TrialResult(**measured, rules=rules, folder=folder)
