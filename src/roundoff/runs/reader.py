"""A run folder, opened for reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from roundoff.errors import RunFolderError, UsageError
from roundoff.runs.files import folder as names
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.lines import read_lines
from roundoff.runs.files.parts import Selection, read_part, read_steps
from roundoff.runs.files.plain_json import JsonValue, object_from, read_json_object, to_json
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS, Table
from roundoff.runs.files.tensor_file import TensorFile
from roundoff.runs.flight import Flight, read_flight
from roundoff.runs.records.call import Call
from roundoff.runs.records.event import Event, events_of
from roundoff.runs.records.finding import Finding
from roundoff.runs.records.info import Ending, RunInfo, read_info
from roundoff.runs.records.metrics import Anomaly, MemoryLook, Metrics
from roundoff.runs.records.replay_info import Origin, ReplayInfo
from roundoff.runs.records.training_facts import BatchFacts, Structure

T = TypeVar("T")

RANK_FIELD = pa.field("rank", pa.int32())
"""The column that every table gains when it is read: files say it by their name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder, opened for reading; nothing is kept, so a run that is still being written can be read again.

    Every method raises a `RunFolderError` that names the file when it finds one broken.
    """

    path: Path
    info: RunInfo

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open a run folder; a `RunFolderError` says what is wrong if it is not one, or too new."""
        return cls(path=Path(path), info=read_info(Path(path)))

    @property
    def ranks(self) -> list[int]:
        """The ranks that have left files, in order."""
        return sorted(names.ranks_with_files(self.path))

    @property
    def steps(self) -> list[int]:
        """The steps that have events, in order."""
        found: set[int] = set()
        for _, _, path in names.parts(self.path, EVENTS.name):
            found |= read_steps(path)
        return sorted(found)

    def events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the events that are asked for, by rank and in the order they were written.

        `site` and `op` are patterns with `*`, `?` and `[...]`; an op may carry its number, `aten.bmm#0`. Parts that
        hold none of the steps are not read. The table has the columns asked for, or all of them, and `rank`.
        """
        selection = Selection(step=step, site=site, phase=phase, op=op, rank=rank)
        return self._read(EVENTS, selection, columns)

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the events that are asked for, one part at a time in memory."""
        selection = Selection(step=step, site=site, phase=phase, op=op, rank=rank)
        try:
            for rows in self._read_parts(EVENTS, selection, EVENTS.names):
                yield from events_of(rows)
        except ValueError as error:
            raise RunFolderError.explain(f"An event in '{self.path}' cannot be read.", why=f"{error}.") from error

    def parameters(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return norms and shares of parameters, with `rank`."""
        return self._read(PARAMETERS, Selection(step=step, rank=rank), None)

    def hashes(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return the hashes of inputs, parameters, gradients and buffers, with `rank`."""
        return self._read(HASHES, Selection(step=step, rank=rank), None)

    def metrics(self, *, rank: int = 0) -> list[Metrics]:
        """Return what each step came to, in order."""
        return list(read_lines(names.metrics_path(self.path, rank=rank), Metrics.from_object))

    def calls(self, *, rank: int = 0) -> list[Call]:
        """Return what the loop did, in order."""
        return list(read_lines(names.calls_path(self.path, rank=rank), Call.from_object))

    def anomalies(self, *, rank: int | None = None) -> list[tuple[int, Anomaly]]:
        """Return (rank, anomaly) of everything the watch saw that cannot be right, by rank and in order."""
        found: list[tuple[int, Anomaly]] = []
        for of_rank in self.ranks if rank is None else [rank]:
            path = names.anomalies_path(self.path, rank=of_rank)
            found.extend((of_rank, anomaly) for anomaly in read_lines(path, Anomaly.from_object))
        return found

    def memory(self, *, rank: int = 0) -> list[MemoryLook]:
        """Return the looks at memory that grew, in order."""
        return list(read_lines(names.memory_path(self.path, rank=rank), MemoryLook.from_object))

    def structures(self, *, rank: int = 0) -> list[Structure]:
        """Return what the training was made of, as often as that was looked at, in order."""
        return list(read_lines(names.structure_path(self.path, rank=rank), Structure.from_object))

    def inputs(self, *, rank: int = 0) -> list[BatchFacts]:
        """Return what came into the steps from outside, in order."""
        return list(read_lines(names.inputs_path(self.path, rank=rank), BatchFacts.from_object))

    def replay_info(self, *, rank: int = 0) -> ReplayInfo | None:
        """Return, for the folder of a replayed step, how the replay went; None if it does not say."""
        return self._read_object(names.replay_info_path(self.path, rank=rank), ReplayInfo)

    def origin(self, *, rank: int = 0) -> Origin | None:
        """Return, for the folder of a replayed step, the op that made the first bad value; None if none was caught."""
        return self._read_object(names.origin_path(self.path, rank=rank), Origin)

    def origin_tensors(self, *, rank: int = 0) -> TensorFile:
        """Open the inputs and results of that op."""
        return TensorFile(names.origin_tensors_path(self.path, rank=rank))

    def replay_batch(self, *, rank: int = 0) -> TensorFile:
        """Open, for the folder of a replayed step, what came into the step from outside."""
        return TensorFile(names.batch_of_replay_path(self.path, rank=rank))

    def replay_state(self, *, rank: int = 0) -> TensorFile:
        """Open, for the folder of a replayed step, the state before it."""
        return TensorFile(names.state_path(self.path, rank=rank))

    def has_replay_state(self, *, rank: int = 0) -> bool:
        """Say whether the state before a replayed step was kept."""
        return names.state_path(self.path, rank=rank).exists()

    def replay_tape(self, *, rank: int = 0) -> dict[str, JsonValue] | None:
        """Return, for the folder of a replayed step, what the loop did in it; None if that was not written down."""
        path = names.tape_path(self.path, rank=rank)
        return read_json_object(path) if path.exists() else None

    def ending(self, *, rank: int = 0) -> Ending | None:
        """Return how the process ended, or that it hangs; None if nobody waited for it, or nothing was to be said."""
        return self._read_object(names.ending_path(self.path, rank=rank), Ending)

    def flight(self, *, rank: int = 0) -> Flight | None:
        """Return what the process was doing when it was last heard of; None if that was not noted."""
        path = names.flight_path(self.path, rank=rank)
        return read_flight(path) if path.exists() else None

    def python_stacks(self, *, rank: int = 0) -> str:
        """Return the Python stacks of a crash or hang, as `faulthandler` writes them; empty if there was none."""
        return _read_text(names.crash_path(self.path, rank=rank))

    def native_stacks(self, *, rank: int = 0) -> str:
        """Return the native stacks of a crash or hang, as gdb writes them; empty if there are none."""
        return _read_text(names.native_crash_path(self.path, rank=rank))

    def memcheck_file(self) -> Path | None:
        """Return where memcheck's XML is; None if the script did not run under it."""
        path = names.memcheck_path(self.path)
        return path if path.exists() else None

    def probes(self) -> list[dict[str, JsonValue]]:
        """Return what probes measured, in order."""
        return list(read_lines(self.path / names.PROBES_NAME, dict))

    def tensor_file(self, step: int, *, rank: int = 0) -> TensorFile:
        """Open the whole tensors of a step; a `RunFolderError` lists the steps that have some."""
        path = names.tensors_path(self.path, rank=rank, step=step)
        if not path.exists():
            kept = [step for of_rank, step, _ in names.tensor_files(self.path) if of_rank == rank]
            raise RunFolderError.explain(
                f"'{self.path}' holds no whole tensors of step {step}, rank {rank}.",
                why=f"steps with tensors of that rank: {', '.join(map(str, kept)) or 'none'}.",
            )
        return TensorFile(path)

    @property
    def tensor_steps(self) -> list[tuple[int, int]]:
        """(rank, step) of every file of whole tensors, in order."""
        return [(rank, step) for rank, step, _ in names.tensor_files(self.path)]

    def batches(self, *, rank: int = 0) -> list[TensorFile]:
        """Open the first batches that were kept, in order."""
        return [TensorFile(path) for of_rank, _, path in names.batch_files(self.path) if of_rank == rank]

    @property
    def replayed_steps(self) -> list[int]:
        """The steps that were replayed, in order."""
        return names.replayed_steps(self.path)

    def perturbed(self, step: int) -> Run | None:
        """Open the run that a step left when its parameters were moved by a rounding; None if that was not tried."""
        path = names.perturbed_path(self.path, step=step)
        return Run.open(path) if path.exists() else None

    def replay(self, step: int) -> Run:
        """Open the run that a replayed step left."""
        return Run.open(names.replay_path(self.path, step=step))

    def findings(self) -> list[Finding] | None:
        """Return what a diagnosis found, the verdict first; None if the run was not diagnosed."""
        path = self.path / names.FINDINGS_NAME
        if not path.exists():
            return None
        value = read_json_object(path).get("findings")
        try:
            if not isinstance(value, list):
                raise ValueError("it has no list 'findings'")
            return [Finding.from_object(item) for item in value]
        except ValueError as error:
            raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.", fix="diagnose again.") from error

    def write_findings(self, findings: Sequence[Finding]) -> None:
        """Write what a diagnosis found, in the order given, over what an earlier one did."""
        value: JsonValue = {"version": names.VERSION, "findings": [finding.to_object() for finding in findings]}
        path = self.path / names.FINDINGS_NAME
        try:
            write_atomically(path, to_json(value, indent=1).encode())
        except OSError as error:
            raise RunFolderError.explain(f"'{path}' cannot be written.", why=f"{error.strerror}.") from error

    def _read_object(self, path: Path, cls: type[T]) -> T | None:
        if not path.exists():
            return None
        try:
            return object_from(cls, read_json_object(path))
        except ValueError as error:
            raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.") from error

    def _read(self, table: Table, selection: Selection, columns: Sequence[str] | None) -> pa.Table:
        chosen = _check_columns(table, columns)
        tables = list(self._read_parts(table, selection, chosen))
        if not tables:
            fields = [RANK_FIELD, *(table.arrow.field(name).with_nullable(True) for name in chosen)]
            return pa.schema(fields).empty_table()
        return pa.concat_tables(tables)

    def _parts(self, table: Table, selection: Selection) -> list[tuple[int, Path]]:
        """Return rank and file of the parts that may hold what is asked for; each is asked itself."""
        return [(rank, path) for rank, _, path in names.parts(self.path, table.name)]

    def _read_parts(self, table: Table, selection: Selection, columns: Sequence[str]) -> Iterator[pa.Table]:
        for rank, path in self._parts(table, selection):
            if selection.rank is None or selection.rank == rank:
                rows = read_part(path, table, columns=columns, selection=selection)
                if rows is not None and rows.num_rows:
                    yield rows.add_column(0, RANK_FIELD, pa.repeat(pa.scalar(rank, pa.int32()), rows.num_rows))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.exists() else ""
    except OSError as error:
        raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error.strerror}.") from error


def _check_columns(table: Table, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(table.names)
    for name in columns:
        if name not in table.names and name != "rank":
            raise UsageError.explain(
                f"The table {table.name} has no column '{name}'.", why=f"it has rank, {', '.join(table.names)}."
            )
    return [name for name in columns if name != "rank"]


# == A run that keeps what was read of it, for those who ask for much the same again and again.

Value = TypeVar("Value")

_MAX_EVENTS = 300_000
"""So many events are kept, half a kilobyte each; what a longer recording holds beyond is read again when asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRun(Run):
    """A run as it was when it was first asked: every file is read once.

    Lists are handed out as copies, so that nobody changes what the next one reads.
    """

    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run) -> CachedRun:
        """Return a view of `run` that keeps what it reads."""
        return run if isinstance(run, CachedRun) else cls(path=run.path, info=run.info)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have left files, in order."""
        return list(self._once("ranks", lambda: self._files.ranks))

    @property
    def steps(self) -> list[int]:
        """The steps that have events, in order."""
        return sorted({step for _, _, steps in self._event_parts for step in steps})

    @property
    def replayed_steps(self) -> list[int]:
        """The steps that were replayed, in order."""
        return list(self._once("replayed_steps", lambda: self._files.replayed_steps))

    def replay(self, step: int) -> Run:
        """Open the run that a replayed step left; it keeps what it reads, too."""
        return self._once(("replay", step), lambda: CachedRun.of(self._files.replay(step)))

    def metrics(self, *, rank: int = 0) -> list[Metrics]:
        """Return what each step came to, in order."""
        return list(self._once(("metrics", rank), lambda: self._files.metrics(rank=rank)))

    def calls(self, *, rank: int = 0) -> list[Call]:
        """Return what the loop did, in order."""
        return list(self._once(("calls", rank), lambda: self._files.calls(rank=rank)))

    def anomalies(self, *, rank: int | None = None) -> list[tuple[int, Anomaly]]:
        """Return (rank, anomaly) of everything the watch saw that cannot be right, by rank and in order."""
        return list(self._once(("anomalies", rank), lambda: self._files.anomalies(rank=rank)))

    def structures(self, *, rank: int = 0) -> list[Structure]:
        """Return what the training was made of, as often as that was looked at, in order."""
        return list(self._once(("structures", rank), lambda: self._files.structures(rank=rank)))

    def inputs(self, *, rank: int = 0) -> list[BatchFacts]:
        """Return what came into the steps from outside, in order."""
        return list(self._once(("inputs", rank), lambda: self._files.inputs(rank=rank)))

    def probes(self) -> list[dict[str, JsonValue]]:
        """Return what probes measured, in order."""
        return list(self._once("probes", lambda: self._files.probes()))

    def parameters(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return norms and shares of parameters, with `rank`."""
        rows = self._once(("parameters", rank), lambda: self._files.parameters(rank=rank))
        return Selection(step=step).filter(rows)

    def hashes(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return the hashes of inputs, parameters, gradients and buffers, with `rank`."""
        rows = self._once(("hashes", rank), lambda: self._files.hashes(rank=rank))
        return Selection(step=step).filter(rows)

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the events that are asked for; those of one step and rank are kept, as far as there is room."""
        if not isinstance(step, int) or rank is None or site is not None or op is not None:
            return Run.iter_events(self, step=step, site=site, phase=phase, op=op, rank=rank)
        return (event for event in self._events_of(step, rank) if phase is None or event.phase == phase)

    def _events_of(self, step: int, rank: int) -> list[Event]:
        key = ("events", step, rank)
        if key in self._kept:
            return cast(list[Event], self._kept[key])
        events = list(Run.iter_events(self, step=step, rank=rank))
        num_events = self._kept.get("num_events", 0) + len(events)
        if num_events <= _MAX_EVENTS:
            self._kept.update({key: events, "num_events": num_events})
        return events

    @property
    def _event_parts(self) -> list[tuple[int, Path, set[int]]]:
        """Rank, file and steps of every part of events: who asks for one step again opens only what holds it."""
        return self._once(
            "event_parts",
            lambda: [(rank, path, read_steps(path)) for rank, _, path in names.parts(self.path, EVENTS.name)],
        )

    def _parts(self, table: Table, selection: Selection) -> list[tuple[int, Path]]:
        if table is not EVENTS or selection.step is None:
            return Run._parts(self, table, selection)
        wanted = {selection.step} if isinstance(selection.step, int) else set(selection.step)
        return [(rank, path) for rank, path, steps in self._event_parts if not wanted.isdisjoint(steps)]

    @property
    def _files(self) -> Run:
        return Run(path=self.path, info=self.info)

    def _once(self, key: Hashable, read: Callable[[], Value]) -> Value:
        if key not in self._kept:
            self._kept[key] = read()
        return cast(Value, self._kept[key])
