"""Runs trials of one subject, keeps what came of each, and never makes one twice."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from roundoff.errors import TrialError
from roundoff.experiments.bisect.judgements import drop_partial_line
from roundoff.experiments.engine.scheduler import Backend, run_tasks
from roundoff.experiments.engine.task import Task, TaskOutcome
from roundoff.experiments.trials.trial import TrialResult, TrialSetting, TrialTarget
from roundoff.runs import JsonValue, to_json
from roundoff.runs.files.lines import append_lines, read_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A trial that has ended."""

    number: int
    """From 1 on, in the order in which they were begun."""
    setting: TrialSetting
    result: TrialResult
    seconds: float
    is_new: bool = False
    """Whether it was made now, and not kept from before."""


OnTrial = Callable[[FinishedTrial], None]


class TrialsFolder(Protocol):
    """Where trials go: the folder of a bisection, or of a plan."""

    @property
    def path(self) -> Path:
        """The folder itself."""

    @property
    def trials(self) -> Path:
        """The file that gets a line for every trial that has ended."""

    def trial(self, number: int) -> Path:
        """Where one trial may write."""


class TrialRunner:
    """All trials of one search, in its folder."""

    def __init__(
        self,
        subject: TrialTarget,
        folder: TrialsFolder,
        *,
        jobs: int = 1,
        on: Backend = "pool",
        on_trial: OnTrial | None = None,
    ) -> None:
        self.subject = subject
        self.folder = folder
        self._jobs, self._on, self._on_trial = jobs, on, on_trial
        if folder.trials.exists():
            drop_partial_line(folder.trials)
        self._kept = {_key(trial.setting): trial for trial in read_lines(folder.trials, _parse_trial)}
        self._asked: set[str] = set()

    @property
    def num_asked(self) -> int:
        """How many trials were asked for, those that were kept from before among them."""
        return len(self._asked)

    @property
    def seconds(self) -> float:
        """How long the trials took that were asked for, whenever they were made."""
        return sum(self._kept[key].seconds for key in self._asked if key in self._kept)

    def __call__(self, setting: TrialSetting) -> TrialResult:
        """Return what came of a setting, trying it if that is not known."""
        return self.all([setting])[0]

    def all(self, settings: Sequence[TrialSetting]) -> list[TrialResult]:
        """Return what came of each setting, trying those that are not known, several at a time.

        Raises:
            TrialError: a trial came to nothing, or its process died; its log tells more.
        """
        self._asked.update(map(_key, settings))
        missing = {_key(setting): setting for setting in settings if _key(setting) not in self._kept}
        first = 1 + max((trial.number for trial in self._kept.values()), default=0)
        numbered = {f"{number}": setting for number, setting in enumerate(missing.values(), first)}
        tasks = [self.subject.task(setting, folder=self.folder.trial(int(n))) for n, setting in numbered.items()]

        def ended(outcome: TaskOutcome) -> None:
            self._keep(outcome, numbered[outcome.task.name])

        run_tasks(tasks, jobs=self._jobs, on=self._on, on_result=ended)
        return [self.kept(setting).result for setting in settings]

    def was_asked(self, setting: TrialSetting) -> bool:
        """Whether this search has asked for the setting already."""
        return _key(setting) in self._asked

    def is_kept(self, setting: TrialSetting) -> bool:
        """Whether it is known what came of the setting."""
        return _key(setting) in self._kept

    def run(self, task: Task) -> Any:
        """Make a call that is no trial, where trials are made, and return its value."""
        (outcome,) = run_tasks([task], jobs=self._jobs, on=self._on)
        if outcome.failure is not None:
            raise _trial_error(outcome, self.subject)
        return outcome.value

    def apart(self, setting: TrialSetting) -> TrialResult:
        """Make a trial that counts for nothing and is not kept, in a folder of its own."""
        result: TrialResult = self.run(self.subject.task(setting, folder=self.folder.path / "apart"))
        return result

    def kept(self, setting: TrialSetting) -> FinishedTrial:
        """Return a trial that was made."""
        return self._kept[_key(setting)]

    @property
    def seconds_each(self) -> float:
        """How long a trial takes, on average."""
        seconds = [trial.seconds for trial in self._kept.values()]
        return sum(seconds) / len(seconds) if seconds else 0.0

    def _keep(self, outcome: TaskOutcome, setting: TrialSetting) -> None:
        if outcome.failure is not None:
            raise _trial_error(outcome, self.subject)
        trial = FinishedTrial(
            number=int(outcome.task.name),
            setting=setting,
            result=outcome.value,
            seconds=outcome.seconds,
            is_new=True,
        )
        append_lines(self.folder.trials, [to_json(_trial_object(trial))])
        self._kept[_key(setting)] = trial
        if self._on_trial is not None:
            self._on_trial(trial)


def quote_log(trial_folder: Path | None) -> str:
    """Quote the last line that a trial has written, its error as a rule, and say where the others are."""
    log = None if trial_folder is None else trial_folder / "log.txt"
    if log is None or not log.exists():
        return ""
    return f": {_last_line(log)}\n       all of it: {_shortest_path(log)}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return textwrap.shorten(lines[-1], 160, placeholder=" ...") if lines else "it wrote nothing"


def _shortest_path(path: Path) -> Path:
    """Return a path as it is shortest to type."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _trial_error(outcome: TaskOutcome, subject: TrialTarget) -> TrialError:
    log = outcome.task.log
    more = f"\n       all of it: {_shortest_path(log)}" if log is not None and log.exists() else ""
    return TrialError.explain(
        f"A trial of `{subject.name}` failed.",
        why=f"{outcome.failure}{more}",
        fix="see that it runs by itself; trials that have ended are kept.",
    )


def _key(setting: TrialSetting) -> str:
    return json.dumps(_setting_object(setting), sort_keys=True)


def _setting_object(setting: TrialSetting) -> dict[str, JsonValue]:
    changes = {field.name: getattr(setting, field.name) for field in fields(setting)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in changes.items()}


def _trial_object(trial: FinishedTrial) -> dict[str, JsonValue]:
    result = {field.name: getattr(trial.result, field.name) for field in fields(trial.result)}
    result["folder"] = None if trial.result.folder is None else str(trial.result.folder)
    return {
        "number": trial.number,
        "seconds": trial.seconds,
        "setting": _setting_object(trial.setting),
        "result": result,
    }


def _parse_trial(line: dict[str, Any]) -> FinishedTrial:
    try:
        result = dict(line["result"])
        folder = result.pop("folder")
        return FinishedTrial(
            number=int(line["number"]),
            seconds=float(line["seconds"]),
            setting=TrialSetting(**line["setting"]),
            result=TrialResult(
                **{**result, "losses": tuple(result["losses"]), "rules": tuple(result["rules"])},
                folder=None if folder is None else Path(folder),
            ),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it does not hold a trial ({error})") from error
