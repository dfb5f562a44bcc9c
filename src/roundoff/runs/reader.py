"""A run folder, opened for reading, with or without a cache."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numpy as np

from roundoff.errors import RunFolderError, UsageError
from roundoff.files import read_bytes, write_atomically
from roundoff.lazy_names import lazy_method
from roundoff.runs import record_kinds as kinds
from roundoff.runs.files import folder as names
from roundoff.runs.files.columns import Rows, no_values
from roundoff.runs.files.plain_json import JsonValue, object_from, object_of, read_json_object, to_json
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS, Table
from roundoff.runs.files.table_parts import Selection, read_part, read_steps
from roundoff.runs.files.tensor_file import TensorFile
from roundoff.runs.flight import Flight, read_flight
from roundoff.runs.record_kinds import LinesKind, ObjectKind
from roundoff.runs.records.call import Call
from roundoff.runs.records.event import Event, events_of
from roundoff.runs.records.finding import Failure, Finding, Gap, RuleAnswer
from roundoff.runs.records.info import Ending, Origin, ReplayInfo, RunInfo, read_info
from roundoff.runs.records.metrics import Anomaly, MemoryLook, Metrics
from roundoff.runs.records.probe import P, Probe
from roundoff.runs.records.training_facts import (
    BatchFacts,
    CriterionCall,
    LostNumbers,
    StateFacts,
    Structure,
    TensorPlacement,
)

T = TypeVar("T")

_inline_page = lazy_method("roundoff.report.notebook", "inline_page")

_MAX_EVENTS = 300_000
"""At most this many events are cached, half a kilobyte each; the rest is read again when it is requested."""


_MAX_TEXT_BYTES = 64 * 2**20
"""A longer file of stacks is refused."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A run folder, opened for reading; nothing is cached, so a run that is still being written can be read again.

    Every method raises a `RunFolderError` that names the file when it finds one broken.
    """

    path: Path
    info: RunInfo

    _repr_html_ = lazy_method("roundoff.report.notebook", "run_html")

    def page(self) -> Any:
        """Return the page that `roundoff report` writes; a notebook shows it inside the cell."""
        return _inline_page(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path}: {self.info.status}>"

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open a run folder; a `RunFolderError` says what is wrong if it is not one, or too new."""
        return cls(path=Path(path), info=read_info(Path(path)))

    @property
    def ranks(self) -> list[int]:
        """The ranks that have left files, in order."""
        return sorted(self._read("ranks", lambda: names.ranks_with_files(self.path)))

    @property
    def steps(self) -> list[int]:
        """The steps that have events, in order."""
        return sorted({step for _, _, steps in self._event_parts for step in steps})

    def events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> Rows:
        """Return the requested events, by rank and in the order they were written.

        `site` and `op` are patterns with `*`, `?` and `[...]`; an op may carry its number, `aten.bmm#0`. Parts that
        hold none of the steps are not read. The table has the requested columns, or all of them, and `rank`.
        """
        return self._read_table(EVENTS, Selection(step=step, site=site, phase=phase, op=op, rank=rank), columns)

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the requested events, one part at a time in memory."""
        selection = Selection(step=step, site=site, phase=phase, op=op, rank=rank)
        try:
            for rows in self._read_parts(EVENTS, selection, EVENTS.names):
                yield from events_of(rows)
        except ValueError as error:
            raise RunFolderError.explain(f"An event in '{self.path}' cannot be read.", why=f"{error}.") from error

    def parameters(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> Rows:
        """Return norms and shares of parameters, with `rank`."""
        return self._read_table(PARAMETERS, Selection(step=step, rank=rank))

    def hashes(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> Rows:
        """Return the hashes of inputs, parameters, gradients and buffers, with `rank`."""
        return self._read_table(HASHES, Selection(step=step, rank=rank))

    def metrics(self, *, rank: int = 0) -> list[Metrics]:
        """Return the numbers of each step, in order."""
        return self._lines(kinds.METRICS, rank=rank)

    def calls(self, *, rank: int = 0) -> list[Call]:
        """Return what the loop did, in order."""
        return self._lines(kinds.CALLS, rank=rank)

    def anomalies(self, *, rank: int | None = None) -> list[tuple[int, Anomaly]]:
        """Return (rank, anomaly) of everything the watch saw that cannot be right, by rank and in order."""
        ranks = self.ranks if rank is None else [rank]
        return [(of_rank, anomaly) for of_rank in ranks for anomaly in self._lines(kinds.ANOMALIES, rank=of_rank)]

    def memory(self, *, rank: int = 0) -> list[MemoryLook]:
        """Return the looks at memory that grew, in order."""
        return self._lines(kinds.MEMORY, rank=rank)

    def structures(self, *, rank: int = 0) -> list[Structure]:
        """Return what the training was made of, each time it was looked at, in order."""
        return self._lines(kinds.STRUCTURES, rank=rank)

    def inputs(self, *, rank: int = 0) -> list[BatchFacts]:
        """Return what came into the steps from outside, in order."""
        return self._lines(kinds.INPUTS, rank=rank)

    def criteria(self, *, rank: int = 0) -> list[CriterionCall]:
        """Return the loss functions that the replayed steps called, in order."""
        return self._lines(kinds.CRITERIA, rank=rank)

    def lost_numbers(self, *, rank: int = 0) -> list[LostNumbers]:
        """Return the calls of the first steps in which whole numbers become others, in order."""
        return self._lines(kinds.LOST_NUMBERS, rank=rank)

    def states(self, *, rank: int = 0) -> list[StateFacts]:
        """Return what the training's state was when it was saved, and before the step after that or after a load."""
        return self._lines(kinds.STATES, rank=rank)

    def placements(self, *, rank: int = 0) -> list[TensorPlacement]:
        """Return how the rank's DTensors lie on their meshes, in the first step that was recorded."""
        return self._lines(kinds.PLACEMENTS, rank=rank)

    @overload
    def probes(self) -> list[Probe]: ...
    @overload
    def probes(self, kind: type[P]) -> list[P]: ...
    def probes(self, kind: type[P] | None = None) -> list[Any]:
        """Return what probes measured, in order; those of one kind if it is given."""
        return [probe for probe in self._lines(kinds.PROBES) if kind is None or isinstance(probe, kind)]

    def failures(self) -> list[Failure]:
        """Return the checks that failed inside roundoff: probes and facts by rank, then rules of the last diagnosis."""
        written = [failure for rank in self.ranks for failure in self._lines(kinds.FAILURES, rank=rank)]
        return [*written, *self._read_diagnosis("failures", Failure)]

    def gaps(self) -> list[Gap]:
        """Return what of the training was not watched, by rank and in order."""
        ranks = [rank for (rank,), _ in names.gaps_path.find(self.path)]
        return [gap for rank in ranks for gap in self._lines(kinds.GAPS, rank=rank)]

    def replay_info(self, *, rank: int = 0) -> ReplayInfo | None:
        """Return, for the folder of a replayed step, how the replay went; None if it does not say."""
        return self._object(kinds.REPLAY_INFO, rank)

    def origin(self, *, rank: int = 0) -> Origin | None:
        """Return, for the folder of a replayed step, the op that made the first bad value; None if none was caught."""
        return self._object(kinds.ORIGIN, rank)

    def ending(self, *, rank: int = 0) -> Ending | None:
        """Return how the process ended, or that it hangs; None if no parent waited for it, or it ended normally."""
        return self._object(kinds.ENDING, rank)

    def origin_tensors(self, *, rank: int = 0) -> TensorFile:
        """Open the inputs and results of that op."""
        return TensorFile(names.origin_tensors_path(self.path, rank=rank))

    def replay_batch(self, *, rank: int = 0) -> TensorFile:
        """Open, for the folder of a replayed step, what came into the step from outside."""
        return TensorFile(names.replay_batch_path(self.path, rank=rank))

    def replay_state(self, *, rank: int = 0) -> TensorFile:
        """Open, for the folder of a replayed step, the state before it."""
        return TensorFile(names.state_path(self.path, rank=rank))

    def has_replay_state(self, *, rank: int = 0) -> bool:
        """Return whether the state before a replayed step was saved."""
        return names.state_path(self.path, rank=rank).exists()

    def replay_tape(self, *, rank: int = 0) -> dict[str, JsonValue] | None:
        """Return, for the folder of a replayed step, what the loop did in it; None if that was not written."""
        path = names.tape_path(self.path, rank=rank)
        return self._read(path, lambda: read_json_object(path) if path.exists() else None)

    def flight(self, *, rank: int = 0) -> Flight | None:
        """Return what the process was doing when it was last heard of; None if that was not noted."""
        path = names.flight_path(self.path, rank=rank)
        return self._read(path, lambda: read_flight(path) if path.exists() else None)

    def python_stacks(self, *, rank: int = 0) -> str:
        """Return the Python stacks of a crash or hang, as `faulthandler` writes them; empty if there was none."""
        return self._text(names.crash_path(self.path, rank=rank))

    def native_stacks(self, *, rank: int = 0) -> str:
        """Return the native stacks of a crash or hang, as gdb writes them; empty if there are none."""
        return self._text(names.native_crash_path(self.path, rank=rank))

    def memcheck_file(self) -> Path | None:
        """Return where memcheck's XML is; None if the script did not run under it."""
        path = names.memcheck_path(self.path)
        return path if path.exists() else None

    def tensor_file(self, step: int, *, rank: int = 0) -> TensorFile:
        """Open the whole tensors of a step; a `RunFolderError` lists the steps that have some."""
        path = names.tensors_path(self.path, rank=rank, step=step)
        if not path.exists():
            saved = [step for of_rank, step in self.tensor_steps if of_rank == rank]
            raise RunFolderError.explain(
                f"'{self.path}' holds no whole tensors of step {step}, rank {rank}.",
                why=f"steps with tensors of that rank: {', '.join(map(str, saved)) or 'none'}.",
            )
        return TensorFile(path)

    @property
    def tensor_steps(self) -> list[tuple[int, int]]:
        """(rank, step) of every file of whole tensors, in order."""
        return [(rank, step) for (rank, step), _ in names.tensors_path.find(self.path)]

    def batches(self, *, rank: int = 0) -> list[TensorFile]:
        """Open the first batches that were saved, in order."""
        return [TensorFile(path) for (of_rank, _), path in names.batch_path.find(self.path) if of_rank == rank]

    @property
    def replayed_steps(self) -> list[int]:
        """The steps that were replayed, in order."""
        return list(self._read("replayed", lambda: [step for (step,), _ in names.replay_path.find(self.path)]))

    def replay(self, step: int) -> Run:
        """Open the run that a replayed step left."""
        path = names.replay_path(self.path, step=step)
        return self._read(path, lambda: self._open(path))

    def perturbed_run(self, step: int) -> Run | None:
        """Open the run that a step left when its parameters were moved by a rounding; None if that was not tried."""
        path = names.perturbed_path(self.path, step=step)
        return self._read(path, lambda: self._open(path) if path.exists() else None)

    def findings(self) -> list[Finding] | None:
        """Return what a diagnosis found, the verdict first; None if the run was not diagnosed."""
        return self._read_diagnosis("findings", Finding) if names.findings_path(self.path).exists() else None

    def rule_answers(self) -> list[RuleAnswer]:
        """Return what each rule of the last diagnosis answered; empty if that was not recorded."""
        return self._read_diagnosis("answers", RuleAnswer)

    def write_findings(
        self, findings: Sequence[Finding], *, answers: Sequence[RuleAnswer] = (), failures: Sequence[Failure] = ()
    ) -> None:
        """Write what a diagnosis found, what its rules answered and which failed, over the last diagnosis."""
        value: dict[str, JsonValue] = {
            "version": names.VERSION,
            "findings": [finding.to_object() for finding in findings],
        }
        if answers:
            value["answers"] = [answer.to_object() for answer in answers]
        if failures:
            value["failures"] = [object_of(failure) for failure in failures]
        path = names.findings_path(self.path)
        try:
            write_atomically(path, to_json(value, indent=1).encode())
        except OSError as error:
            raise RunFolderError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error

    def _read_diagnosis(self, name: str, record: type[T]) -> list[T]:
        """Return one of the lists in findings.json."""
        path = names.findings_path(self.path)
        if not path.exists():
            return []
        content = read_json_object(path)
        items = content.get(name, None if name == "findings" else [])
        try:
            if not isinstance(items, list):
                raise ValueError(f"it has no list '{name}'")
            return [object_from(record, item) for item in items]
        except ValueError as error:
            raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.", fix="diagnose again.") from error

    def _lines(self, kind: LinesKind[T], **rank: int) -> list[T]:
        return list(self._read(kind.file(self.path, **rank), lambda: kind.read(self.path, **rank)))

    def _object(self, kind: ObjectKind[T], rank: int) -> T | None:
        return self._read(kind.file(self.path, rank=rank), lambda: kind.read(self.path, rank=rank))

    def _text(self, path: Path) -> str:
        return self._read(path, lambda: _read_text(path))

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        """Read something; a `CachedRun` does so once for each key."""
        return read()

    def _open(self, path: Path) -> Run:
        return Run.open(path)

    @property
    def _event_parts(self) -> list[tuple[int, Path, set[int]]]:
        """Rank, file and steps of every part of events."""
        files = names.part_paths[EVENTS.name]
        return self._read(files, lambda: [(rank, path, read_steps(path)) for (rank, _), path in files.find(self.path)])

    def _read_table(self, table: Table, selection: Selection, columns: Sequence[str] | None = None) -> Rows:
        wanted = _check_columns(table, columns)
        tables = list(self._read_parts(table, selection, wanted))
        if not tables:
            columns_of = {column.name: no_values(column, 0) for column in table.columns if column.name in wanted}
            return Rows(columns=columns_of, num_rows=0).with_numbers(rank=np.zeros(0, dtype=np.int32))
        return Rows.concat(tables)

    def _parts(self, table: Table, selection: Selection) -> list[tuple[int, Path]]:
        """Return rank and file of the parts that may hold what is requested; reading each one decides."""
        return [(numbers[0], path) for numbers, path in names.part_paths[table.name].find(self.path)]

    def _read_parts(self, table: Table, selection: Selection, columns: Sequence[str]) -> Iterator[Rows]:
        for rank, path in self._parts(table, selection):
            if selection.rank is None or selection.rank == rank:
                rows = read_part(path, table, columns=columns, selection=selection)
                if rows is not None and rows.num_rows:
                    yield rows.with_numbers(rank=np.full(rows.num_rows, rank, dtype=np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRun(Run):
    """A run as it was when it was first read: records, stacks and the tables of parameters and hashes are read once.

    Events are cached by step and rank, up to a limit; whole tensors are read each time they are requested, and so is
    findings.json, which a diagnosis replaces. Lists are returned as copies, so that no caller changes what the next one
    reads.
    """

    _cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run) -> CachedRun:
        """Return a view of `run` that caches what it reads."""
        return run if isinstance(run, CachedRun) else cls(path=run.path, info=run.info)

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the requested events; those of one step and rank are cached, up to a limit."""
        if not isinstance(step, int) or rank is None or site is not None or op is not None:
            return Run.iter_events(self, step=step, site=site, phase=phase, op=op, rank=rank)
        return (event for event in self._events_of(step, rank) if phase is None or event.phase == phase)

    def _events_of(self, step: int, rank: int) -> list[Event]:
        key = ("events", step, rank)
        if key in self._cache:
            return cast(list[Event], self._cache[key])
        events = list(Run.iter_events(self, step=step, rank=rank))
        num_events = self._cache.get("num_events", 0) + len(events)
        if num_events <= _MAX_EVENTS:
            self._cache.update({key: events, "num_events": num_events})
        return events

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = read()
        return cast(T, self._cache[key])

    def _open(self, path: Path) -> Run:
        return CachedRun.of(Run.open(path))

    def _read_table(self, table: Table, selection: Selection, columns: Sequence[str] | None = None) -> Rows:
        if table is EVENTS:
            return Run._read_table(self, table, selection, columns)
        whole = Selection(rank=selection.rank)
        rows = self._read((table.name, selection.rank), lambda: Run._read_table(self, table, whole))
        return Selection(step=selection.step).filter(rows)

    def _parts(self, table: Table, selection: Selection) -> list[tuple[int, Path]]:
        if table is not EVENTS or selection.step is None:
            return Run._parts(self, table, selection)
        wanted = {selection.step} if isinstance(selection.step, int) else set(selection.step)
        return [(rank, path) for rank, path, steps in self._event_parts if not wanted.isdisjoint(steps)]


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path, max_bytes=_MAX_TEXT_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _check_columns(table: Table, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to read, all of them by default; a `UsageError` names one that the table does not have."""
    if columns is None:
        return list(table.names)
    for name in columns:
        if name not in table.names and name != "rank":
            raise UsageError.explain(
                f"The table {table.name} has no column '{name}'.", why=f"it has rank, {', '.join(table.names)}."
            )
    return [name for name in columns if name != "rank"]
