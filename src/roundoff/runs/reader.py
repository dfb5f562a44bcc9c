"""A run folder, opened for reading."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from roundoff.errors import RunFolderError, UsageError
from roundoff.runs import folder as names
from roundoff.runs.anomaly import Anomaly
from roundoff.runs.atomic import write_atomically
from roundoff.runs.batch_facts import BatchFacts
from roundoff.runs.call import Call
from roundoff.runs.ending import Ending
from roundoff.runs.event import Event, events_of
from roundoff.runs.finding import Finding
from roundoff.runs.flight_reader import Flight, read_flight
from roundoff.runs.info import RunInfo, read_info
from roundoff.runs.lines import read_lines
from roundoff.runs.memory import MemoryLook
from roundoff.runs.metrics import Metrics
from roundoff.runs.parts import read_part, read_steps
from roundoff.runs.plain_json import JsonValue, read_json_object, to_json
from roundoff.runs.replay_info import Origin, ReplayInfo
from roundoff.runs.schema import EVENTS, HASHES, PARAMETERS, Table
from roundoff.runs.selection import Selection
from roundoff.runs.structure import Structure
from roundoff.runs.tensor_file import TensorFile
from roundoff.runs.typed_json import object_from

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
        chosen = _chosen(table, columns)
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


def _chosen(table: Table, columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(table.names)
    for name in columns:
        if name not in table.names and name != "rank":
            raise UsageError.explain(
                f"The table {table.name} has no column '{name}'.", why=f"it has rank, {', '.join(table.names)}."
            )
    return [name for name in columns if name != "rank"]
