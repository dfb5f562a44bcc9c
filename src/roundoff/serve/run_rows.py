"""What the list shows about each run, cached until its files change, and the state it is in."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from roundoff.errors import RunFolderError
from roundoff.runs import Ending, Finding, JsonValue, Run, RunInfo, Severity, sampled_metrics, to_json
from roundoff.serve.http import Refusal
from roundoff.serve.runs_folder import RunsFolder, stamp_of

State = Literal["running", "silent", "hanging", "finished", "failed", "crashed"]
STATES: tuple[State, ...] = ("running", "silent", "hanging", "finished", "failed", "crashed")

SILENT_AFTER_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run, and details."""

    word: State
    detail: str = ""


def state_of(info: RunInfo, endings: Sequence[Ending], *, seconds_quiet: float) -> RunState:
    """Return the state of a run.

    A run that was killed without being supervised still says that it is running: it is `silent` if nothing in its
    folder has changed for long.
    """
    dead = next((ending for ending in endings if _has_died(ending)), None)
    if dead is not None:
        was_wanted = dead.signal is not None and dead.signal == dead.forwarded_signal
        return RunState(word="failed" if was_wanted else "crashed", detail=_death(dead))
    if info.status == "failed":
        return RunState(word="failed", detail="ended with an error")
    if info.status == "finished":
        return RunState(word="finished")
    hang = next((ending for ending in endings if _hangs(ending)), None)
    if hang is not None and hang.seconds_without_progress is not None:
        return RunState(word="hanging", detail=f"no progress for {format_duration(hang.seconds_without_progress)}")
    if seconds_quiet > SILENT_AFTER_SECONDS:
        return RunState(word="silent", detail=f"no output for {format_duration(seconds_quiet)}; possibly killed")
    return RunState(word="running")


def format_duration(seconds: float) -> str:
    """Write a duration in its largest unit.

    >>> format_duration(59), format_duration(3700), format_duration(200_000)
    ('59 s', '1 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _has_died(ending: Ending) -> bool:
    return not ending.was_over and (ending.was_stopped or ending.signal is not None or bool(ending.exit_code))


def _hangs(ending: Ending) -> bool:
    return ending.seconds_without_progress is not None and ending.exit_code is None and not ending.has_gone_on


def _death(ending: Ending) -> str:
    if ending.was_stopped:
        return "hung and was terminated"
    if ending.signal is not None:
        name = str(ending.signal)
        with suppress(ValueError):
            name = signal.Signals(ending.signal).name
        return f"ended by {name}" + (", sent by a user" if ending.signal == ending.forwarded_signal else "")
    return f"ended with exit code {ending.exit_code}"


FRESH_SECONDS = 0.2
"""The disk is read at most this often, however many requests there are."""
MAX_ENDINGS = 16
"""The endings of at most this many ranks are read."""
_READ = re.compile(r"run\.json|metrics-rank0\.jsonl|findings\.json|ending-rank(\d+)\.json")
_ENDING = re.compile(r"ending-rank(\d+)\.json")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRow:
    """One run as the list shows it; for a damaged run, only its problem.

    It stays the same object until the run changes, so that what is derived from it can be cached.
    """

    name: str
    problem: str | None = None
    info: RunInfo = field(default_factory=RunInfo)
    endings: Sequence[Ending] = ()
    state: RunState | None = None
    """None if it is damaged."""
    num_steps: int = 0
    losses: Sequence[float] = ()
    """Losses up to the last step; for a long run, some at even intervals."""
    findings: Sequence[Finding] | None = None
    """The verdict first; None if it was not diagnosed."""

    @property
    def model(self) -> str | None:
        """The model of `roundoff train`, if the run says so."""
        model = self.info.settings.get("model")
        return model if isinstance(model, str) else None

    @property
    def command(self) -> str:
        """The script and its arguments, without its directory."""
        first, *rest = self.info.command or ("",)
        return " ".join([os.path.basename(first), *rest])

    @cached_property
    def text(self) -> str:
        """The row as JSON."""
        return to_json(self.to_object())

    @cached_property
    def version(self) -> str:
        """A hash that changes with what the row shows."""
        return hashlib.blake2b(self.text.encode(), digest_size=6).hexdigest()

    def count_findings(self) -> dict[str, int]:
        """Return how many findings there are of each severity."""
        found = self.findings or ()
        return {str(each): sum(finding.severity is each for finding in found) for each in Severity}

    def to_object(self) -> dict[str, JsonValue]:
        """Return the row as a JSON object."""
        if self.state is None:
            return {"name": self.name, "problem": self.problem}
        worst = self.findings[0] if self.findings else None
        return {
            "name": self.name,
            "state": self.state.word,
            "detail": self.state.detail,
            "started": self.info.started,
            "finished": self.info.finished,
            "recipe": self.info.recipe,
            "model": self.model,
            "command": list(self.info.command),
            "ranks": self.info.ranks,
            "num_steps": self.num_steps,
            "last_loss": self.losses[-1] if self.losses else None,
            "losses": list(self.losses),
            "findings": None if self.findings is None else self.count_findings(),
            "verdict": None if worst is None else {"rule": worst.rule, "title": worst.title, "step": worst.step},
        }


class RunRows:
    """The rows of a directory; each is read again when its files have changed, by one thread at a time."""

    def __init__(self, folder: RunsFolder) -> None:
        self._folder = folder
        self._kept: dict[str, tuple[str, RunRow]] = {}
        self._rows: list[RunRow] = []
        self._looked = -FRESH_SECONDS
        self._lock = threading.Lock()

    def rows(self) -> list[RunRow]:
        """Return the runs, newest first and damaged ones last."""
        with self._lock:
            if time.monotonic() - self._looked >= FRESH_SECONDS:
                rows = {name: self._row(name) for name in self._folder.names()}
                self._kept = {name: kept for name, kept in self._kept.items() if name in rows}
                by_age = sorted(rows.values(), key=lambda row: row.info.started, reverse=True)
                self._rows = sorted(by_age, key=lambda row: row.state is None)
                self._looked = time.monotonic()
            return list(self._rows)

    def row(self, name: str) -> RunRow:
        """Return one run; a `Refusal` if there is none of that name."""
        self._folder.path_of(name)
        with self._lock:
            return self._row(name)

    def _row(self, name: str) -> RunRow:
        try:
            path = self._folder.path_of(name)
            files = self._folder.files(path, top_only=True)
            stamp = stamp_of({key: found for key, found in files.items() if _READ.fullmatch(key)})
            known = self._kept.get(name)
            row = known[1] if known is not None and known[0] == stamp else _read_row(name, Run.open(path), files)
        except (RunFolderError, Refusal) as error:
            said = error if isinstance(error, Refusal) else Refusal.of_error(422, error)
            return RunRow(name=name, problem=" ".join(filter(None, (said.what, said.why))))
        heard = max((found.st_mtime for found in files.values()), default=0.0)
        state = state_of(row.info, row.endings, seconds_quiet=time.time() - heard)
        row = row if row.state == state else replace(row, state=state)
        self._kept[name] = (stamp, row)
        return row


def _read_row(name: str, run: Run, files: Mapping[str, os.stat_result]) -> RunRow:
    ranks = sorted(int(found[1]) for found in map(_ENDING.fullmatch, files) if found)
    endings = [run.ending(rank=rank) for rank in ranks[:MAX_ENDINGS]]
    metrics = sampled_metrics(run.path)
    findings = run.findings()
    return RunRow(
        name=name,
        info=run.info,
        endings=[ending for ending in endings if ending is not None],
        num_steps=metrics[-1].step + 1 if metrics else 0,
        losses=[each.loss for each in metrics if each.loss is not None],
        findings=None if findings is None else tuple(findings),
    )
