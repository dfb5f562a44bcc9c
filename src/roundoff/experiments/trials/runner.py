"""Runs the trials of one training, stores every result, and never runs a trial twice."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roundoff.errors import TrialError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.engine.scheduler import Backend, run_tasks
from roundoff.experiments.experiment_folder import ExperimentFolder
from roundoff.experiments.trials.trial import TrialResult, TrialSetting, TrialTarget
from roundoff.runs import JsonValue
from roundoff.runs.files.lines import append_lines, drop_partial_line, read_lines
from roundoff.runs.files.plain_json import object_from, object_of, object_to_text, optional_field


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A trial that has ended."""

    number: int
    """From 1, in the order in which they were started."""
    setting: TrialSetting
    result: TrialResult
    seconds: float
    is_new: bool = optional_field(False)
    """Whether it was run now, and not read from the folder."""


OnTrial = Callable[[FinishedTrial], None]


class TrialRunner:
    """All trials of one search, in its folder."""

    def __init__(
        self,
        target: TrialTarget,
        folder: ExperimentFolder,
        *,
        jobs: int = 1,
        on: Backend = "pool",
        on_trial: OnTrial | None = None,
    ) -> None:
        self.target = target
        self.folder = folder
        self._jobs, self._on, self._on_trial = jobs, on, on_trial
        if folder.trials.exists():
            drop_partial_line(folder.trials)
        self._finished = {_key(trial.setting): trial for trial in read_lines(folder.trials, _parse_trial)}
        self._requested: set[str] = set()

    @property
    def num_requested(self) -> int:
        """How many different trials were requested, including those read from the folder."""
        return len(self._requested)

    @property
    def seconds(self) -> float:
        """How long the requested trials took, whenever they were run."""
        return sum(self._finished[key].seconds for key in self._requested if key in self._finished)

    def __call__(self, setting: TrialSetting) -> TrialResult:
        """Return the result of a setting, running the trial if it is not known yet."""
        return self.run_all([setting])[0]

    def run_all(self, settings: Sequence[TrialSetting]) -> list[TrialResult]:
        """Return the result of each setting, running those that are not known yet, several at a time.

        Raises:
            TrialError: a trial failed, or its process died; its log says more.
        """
        self._requested.update(map(_key, settings))
        missing = {_key(setting): setting for setting in settings if _key(setting) not in self._finished}
        first = 1 + max((trial.number for trial in self._finished.values()), default=0)
        numbered = {f"{number}": setting for number, setting in enumerate(missing.values(), first)}
        tasks = [self.target.task(setting, folder=self.folder.trial(int(n))) for n, setting in numbered.items()]

        def on_result(outcome: TaskOutcome) -> None:
            self._store(outcome, numbered[outcome.task.name])

        run_tasks(tasks, jobs=self._jobs, on=self._on, on_result=on_result)
        return [self.trial_of(setting).result for setting in settings]

    def was_requested(self, setting: TrialSetting) -> bool:
        """Whether this search has already requested the setting."""
        return _key(setting) in self._requested

    def is_known(self, setting: TrialSetting) -> bool:
        """Whether the result of the setting is known."""
        return _key(setting) in self._finished

    def run_task(self, task: Task) -> Any:
        """Run a task that is not a trial in the same place, and return its value."""
        (outcome,) = run_tasks([task], jobs=self._jobs, on=self._on)
        if outcome.failure is not None:
            raise _trial_error(outcome, self.target)
        return outcome.value

    def run_uncounted(self, setting: TrialSetting) -> TrialResult:
        """Run a trial that is neither counted nor stored, in its own folder."""
        result: TrialResult = self.run_task(self.target.task(setting, folder=self.folder.path / "apart"))
        return result

    def trial_of(self, setting: TrialSetting) -> FinishedTrial:
        """Return a trial that has been run."""
        return self._finished[_key(setting)]

    @property
    def seconds_each(self) -> float:
        """How long a trial takes on average."""
        seconds = [trial.seconds for trial in self._finished.values()]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def _store(self, outcome: TaskOutcome, setting: TrialSetting) -> None:
        if outcome.failure is not None:
            raise _trial_error(outcome, self.target)
        trial = FinishedTrial(
            number=int(outcome.task.name),
            setting=setting,
            result=outcome.value,
            seconds=outcome.seconds,
            is_new=True,
        )
        append_lines(self.folder.trials, [object_to_text(replace(trial, is_new=False))])
        self._finished[_key(setting)] = trial
        if self._on_trial is not None:
            self._on_trial(trial)


def quote_log(trial_folder: Path | None) -> str:
    """Quote the last line of a trial's log, which is usually its error, and name the log."""
    log = None if trial_folder is None else trial_folder / "log.txt"
    if log is None or not log.exists():
        return ""
    return f": {_last_line(log)}\n       log: {_shortest_path(log)}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return textwrap.shorten(lines[-1], 160, placeholder=" ...") if lines else "it wrote nothing"


def _shortest_path(path: Path) -> Path:
    """Return a path relative to the working directory if it is inside it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _trial_error(outcome: TaskOutcome, target: TrialTarget) -> TrialError:
    log = outcome.task.log
    more = f"\n       log: {_shortest_path(log)}" if log is not None and log.exists() else ""
    return TrialError.explain(
        f"A trial of `{target.name}` failed.",
        why=f"{outcome.failure}{more}",
        fix="check that it runs on its own; finished trials are kept.",
    )


def _key(setting: TrialSetting) -> str:
    return json.dumps(object_of(setting), sort_keys=True)


def _parse_trial(line: Mapping[str, JsonValue]) -> FinishedTrial:
    return object_from(FinishedTrial, line)
