"""A script that calls `apply_recipe` as a subject of trials: run as it is, under a watch that notes its losses."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundoff.experiments.steering import steered
from roundoff.experiments.task import Task
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.record.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSubject:
    """A script or a module and its arguments; each trial runs it as the main program of a fresh process."""

    script: Script
    with_rules: bool = False
    """Diagnose each trial: for judges that ask for findings."""
    seed: int | None = 0
    """Every random generator is set to this before the script starts, unless a setting says otherwise."""
    working_folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """What a user would have typed."""
        return shlex.join(self.script.command[1:])

    @property
    def fingerprint(self) -> str:
        """A hash of the command, and of the script as it is today."""
        path = self.working_folder / self.script.target
        text = path.read_bytes() if not self.script.is_module and path.is_file() else b""
        return hashlib.sha256(f"{self.name}\n{self.seed}\n".encode() + text).hexdigest()

    def task(self, setting: Setting, *, folder: Path) -> Task:
        """Return the call that runs the script once, changed by the setting."""
        trial = ScriptTrial(subject=self, setting=setting, folder=folder.absolute())
        return Task(name=folder.name, call=try_script, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrial:
    """One run of a script, as it is sent to its process."""

    subject: ScriptSubject
    setting: Setting
    folder: Path


def try_script(trial: ScriptTrial) -> TrialResult:
    """Run the script once and read what it came to; an exception that it raised is exit code 1, told in its log."""
    # Imported here: whoever only names a script needs no torch.
    from roundoff.experiments.other_seeds import seeds_shifted
    from roundoff.experiments.trial_runs import empty_run_folder, result_of_run, watch_settings
    from roundoff.record.repeatable import repeatable
    from roundoff.record.script import run_script
    from roundoff.switches import switched, switches_in_environment
    from roundoff.watch.crash import ProcessGuard
    from roundoff.watch.watching import start_watching

    subject, setting = trial.subject, trial.setting
    seed = subject.seed if setting.seed is None else setting.seed
    run_folder = empty_run_folder(trial.folder)
    guard = ProcessGuard()
    try:
        with contextlib.chdir(subject.working_folder), steered(setting, folder=trial.folder):
            watch = start_watching(
                to=run_folder,
                settings=watch_settings(with_rules=subject.with_rules),
                command=subject.script.command,
                seed=seed,
                guard=guard,
            )
            repeating = repeatable(seed=seed, deterministic=False, repeat_batch=False)
            switching = switched(switches_in_environment())
            shifting = seeds_shifted((seed or 0) - (subject.seed or 0))
            with watch.running(), ending_after(setting.steps, of=watch), repeating, shifting, switching:
                code = int(run_script(subject.script, on_error=watch.note_exception))  # sys.exit(True) gives True
                watch.training_failed = code != 0
    finally:
        guard.close()
    return result_of_run(run_folder, exit_code=code, with_rules=subject.with_rules)


@contextlib.contextmanager
def ending_after(num_steps: int | None, *, of: Any) -> Iterator[None]:
    """End the script, as `sys.exit(0)` would, when it begins one step more than this; None: never."""
    if num_steps is None:
        yield
        return
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    def leave_if_done(*_: object) -> None:
        # The watch was told first: it has closed the step before if this forward begins another.
        if torch.is_grad_enabled() and of.step >= num_steps:
            raise SystemExit(0)

    hook = register_module_forward_pre_hook(leave_if_done)
    try:
        yield
    finally:
        hook.remove()
