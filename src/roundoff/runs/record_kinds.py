"""The kinds of records in a run folder: the file of each, its type, and how a line of it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from roundoff.errors import RunFolderError
from roundoff.runs.files import folder as names
from roundoff.runs.files.folder import FileName
from roundoff.runs.files.lines import read_lines
from roundoff.runs.files.plain_json import JsonValue, object_from, read_json_object
from roundoff.runs.records.call import Call
from roundoff.runs.records.finding import Failure, Gap
from roundoff.runs.records.info import Ending, Origin, ReplayInfo
from roundoff.runs.records.metrics import Anomaly, MemoryLook, Metrics
from roundoff.runs.records.probe import PROBE_TYPES, Probe, probe_from
from roundoff.runs.records.training_facts import (
    BatchFacts,
    CriterionCall,
    LostNumbers,
    StateFacts,
    Structure,
    TensorPlacement,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LinesKind(Generic[R]):
    """Records that are one line of JSON each; a line for which `parse` returns None is of a newer version."""

    file: FileName
    parse: Callable[[dict[str, JsonValue]], R | None]

    def read(self, folder: Path, **rank: int) -> list[R]:
        """Return every record that can be understood, in order; none without a file."""
        return [record for record in read_lines(self.file(folder, **rank), self.parse) if record is not None]


@dataclass(frozen=True, slots=True)
class ObjectKind(Generic[R]):
    """A record that has a JSON file of its own."""

    file: FileName
    record: type[R]

    def read(self, folder: Path, **rank: int) -> R | None:
        """Return the record, or None without a file."""
        path = self.file(folder, **rank)
        if not path.exists():
            return None
        try:
            return object_from(self.record, read_json_object(path))
        except ValueError as error:
            raise RunFolderError.explain(f"'{path}' cannot be read.", why=f"{error}.") from error


METRICS = LinesKind(names.metrics_path, partial(object_from, Metrics))
CALLS = LinesKind(names.calls_path, Call.from_object)
ANOMALIES = LinesKind(names.anomalies_path, Anomaly.from_object)
MEMORY = LinesKind(names.memory_path, partial(object_from, MemoryLook))
STRUCTURES = LinesKind(names.structure_path, partial(object_from, Structure))
INPUTS = LinesKind(names.inputs_path, partial(object_from, BatchFacts))
CRITERIA = LinesKind(names.criteria_path, partial(object_from, CriterionCall))
LOST_NUMBERS = LinesKind(names.lost_numbers_path, partial(object_from, LostNumbers))
STATES = LinesKind(names.states_path, partial(object_from, StateFacts))
PLACEMENTS = LinesKind(names.placements_path, partial(object_from, TensorPlacement))
FAILURES = LinesKind(names.failures_path, partial(object_from, Failure))
GAPS = LinesKind(names.gaps_path, partial(object_from, Gap))
PROBES = LinesKind(names.probes_path, probe_from)

ENDING = ObjectKind(names.ending_path, Ending)
REPLAY_INFO = ObjectKind(names.replay_info_path, ReplayInfo)
ORIGIN = ObjectKind(names.origin_path, Origin)

Record: TypeAlias = (
    Metrics
    | Call
    | Anomaly
    | MemoryLook
    | Structure
    | BatchFacts
    | CriterionCall
    | LostNumbers
    | StateFacts
    | TensorPlacement
    | Failure
    | Gap
    | Probe
    | ReplayInfo
    | Origin
)

KIND_OF: Mapping[type, LinesKind[Any] | ObjectKind[Any]] = {
    Metrics: METRICS,
    Call: CALLS,
    Anomaly: ANOMALIES,
    MemoryLook: MEMORY,
    Structure: STRUCTURES,
    BatchFacts: INPUTS,
    CriterionCall: CRITERIA,
    LostNumbers: LOST_NUMBERS,
    StateFacts: STATES,
    TensorPlacement: PLACEMENTS,
    Failure: FAILURES,
    Gap: GAPS,
    ReplayInfo: REPLAY_INFO,
    Origin: ORIGIN,
    **dict.fromkeys(PROBE_TYPES.values(), PROBES),
}
"""Where a writer puts a record of each type."""
