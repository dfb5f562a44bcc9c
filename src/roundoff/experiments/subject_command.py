"""Any command as a subject of trials: it learns from its environment what is changed, and its exit status answers."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from roundoff.errors import BisectError
from roundoff.experiments.steering import variables_of
from roundoff.experiments.task import Task
from roundoff.experiments.trial import Setting, TrialResult

_NOT_STARTED = (126, 127)
"""What a shell ends with if it cannot run a command: no answer to the question that was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSubject:
    """A command; each trial runs it with `ROUNDOFF_OVERRIDES` and `ROUNDOFF_SITES` set."""

    words: tuple[str, ...]
    working_folder: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        """What a user would have typed."""
        return shlex.join(self.words)

    @property
    def fingerprint(self) -> str:
        """A hash of the command, and of the files among its words as they are today."""
        files = [path for word in self.words if (path := self.working_folder / word).is_file()]
        texts = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
        return hashlib.sha256(self.name.encode() + b"\n" + texts).hexdigest()

    def task(self, setting: Setting, *, folder: Path) -> Task:
        """Return the call that runs the command once, changed by the setting."""
        trial = CommandTrial(subject=self, setting=setting, folder=folder.absolute())
        return Task(name=folder.name, call=try_command, argument=trial, log=folder / "log.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTrial:
    """One run of a command, as it is sent to its process."""

    subject: CommandSubject
    setting: Setting
    folder: Path


def try_command(trial: CommandTrial) -> TrialResult:
    """Run the command once; a signal that ends it counts as a shell counts it, 128 and its number."""
    from roundoff.watch.process_signals import die_with_parent

    subject, parent = trial.subject, os.getpid()
    trial.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **variables_of(trial.setting, folder=trial.folder)}
    try:
        ended = subprocess.run(
            subject.words,
            env=environment,
            cwd=subject.working_folder,
            check=False,
            preexec_fn=lambda: die_with_parent(parent),
        )
    except OSError as error:
        raise _not_started(subject, f"{error.strerror}.") from error
    if ended.returncode in _NOT_STARTED:
        raise _not_started(subject, f"it ended with {ended.returncode}, as a shell does that finds no command.")
    code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
    return TrialResult(exit_code=code, folder=trial.folder)


def _not_started(subject: CommandSubject, why: str) -> BisectError:
    return BisectError.explain(
        f"The command '{subject.name}' cannot be run.", why=why, fix="name a program, with its path if need be."
    )
