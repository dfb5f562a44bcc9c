"""The one that writes a run folder while the training goes on."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from roundoff.errors import RunFolderError
from roundoff.runs.files import folder as names
from roundoff.runs.files.atomic import write_atomically
from roundoff.runs.files.columns import EventColumns, HashColumns, ParameterColumns
from roundoff.runs.files.lines import append_lines
from roundoff.runs.files.mirror import Mirror, MirrorStoppedWarning
from roundoff.runs.files.parts import PartWriter
from roundoff.runs.files.plain_json import JsonValue, object_of, to_json
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS
from roundoff.runs.files.tensor_writer import TensorWriter
from roundoff.runs.records.call import Call
from roundoff.runs.records.info import RunInfo, Status, write_info
from roundoff.runs.records.metrics import Anomaly, MemoryLook, Metrics
from roundoff.runs.records.replay_info import Origin, ReplayInfo
from roundoff.runs.records.training_facts import BatchFacts, Structure


class RecordingStoppedWarning(UserWarning):
    """The run could not be written any further; the training goes on."""


class RunWriter:
    """Writes one rank's share of a run folder.

    Rows and lines are collected and written by `flush`; after it they survive the death of the process. When
    something cannot be written, the writer warns once, remembers why in `stopped`, and every later call does
    nothing; with `strict` it raises a `RunFolderError` instead. In a forked process (a data
    loader's worker) it does nothing.
    """

    def __init__(self, folder: Path, info: RunInfo, *, rank: int, strict: bool, mirror: Mirror | None) -> None:
        self.folder = folder
        self.info = info
        self.rank = rank
        self.stopped: str | None = None
        """Why nothing is written any more, or None."""
        self._strict = strict
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._mirror = mirror
        self._is_closed = False
        self._lines: dict[Path, list[str]] = {}
        self._events = PartWriter(folder, EVENTS, rank=rank)
        self._parameters = PartWriter(folder, PARAMETERS, rank=rank)
        self._hashes = PartWriter(folder, HASHES, rank=rank)
        self._tables = (self._events, self._parameters, self._hashes)

    @classmethod
    def create(
        cls,
        folder: Path | str,
        info: RunInfo,
        *,
        rank: int = 0,
        strict: bool = False,
        mirror: str | None = None,
        writes_info: bool = False,
    ) -> RunWriter:
        """Make the folder, and run.json in it if this is rank 0, or with `writes_info` if nobody has.

        A `RunFolderError` says that it cannot be made, or that this rank has already left files in it. `mirror` is an
        fsspec URL, `s3://bucket/runs/a`: finished files are copied there too; when that fails, a warning says so and
        the recording goes on.
        """
        folder = Path(folder)
        far = Mirror(mirror, folder) if mirror else None
        info = replace(info, name=info.name or folder.resolve().name, started=info.started or _now())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_taken(folder, rank, is_shared=writes_info)
            if rank == 0 or (writes_info and not (folder / names.INFO_NAME).exists()):
                write_info(folder, info)
            (folder / EVENTS.name).mkdir(exist_ok=True)
        except OSError as error:
            raise names.unwritable_error(folder, error) from error
        writer = cls(folder, info, rank=rank, strict=strict, mirror=far)
        if rank == 0:
            writer._send(folder / names.INFO_NAME)
        return writer

    def write_events(self, columns: EventColumns) -> None:
        """Take events; the arrays may be reused when this returns."""
        self._attempt(lambda: self._add(self._events, columns))

    def write_parameters(self, columns: ParameterColumns) -> None:
        """Take the norms and shares of parameters."""
        self._attempt(lambda: self._add(self._parameters, columns))

    def write_hashes(self, columns: HashColumns) -> None:
        """Take hashes."""
        self._attempt(lambda: self._add(self._hashes, columns))

    def write_metrics(self, metrics: Metrics) -> None:
        """Take what one step came to."""
        path = names.metrics_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(metrics.to_text()))

    def write_call(self, call: Call) -> None:
        """Take something the loop did."""
        path = names.calls_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(call.to_text()))

    def write_anomaly(self, anomaly: Anomaly) -> None:
        """Take something that cannot be right."""
        path = names.anomalies_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(anomaly.to_text()))

    def write_memory(self, look: MemoryLook) -> None:
        """Take a look at memory that grows."""
        path = names.memory_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(look.to_text()))

    def write_structure(self, structure: Structure) -> None:
        """Take what the training is made of."""
        path = names.structure_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(to_json(structure.to_object())))

    def write_inputs(self, facts: BatchFacts) -> None:
        """Take what came into a step from outside."""
        path = names.inputs_path(self.folder, rank=self.rank)
        self._attempt(lambda: self._lines.setdefault(path, []).append(to_json(facts.to_object())))

    def write_replay_info(self, info: ReplayInfo) -> None:
        """Say, in the folder of a replayed step, how the replay went; written at once."""
        path = names.replay_info_path(self.folder, rank=self.rank)
        self._attempt(lambda: write_atomically(path, to_json(object_of(info), indent=1).encode()))

    def write_origin(self, origin: Origin) -> None:
        """Say, in the folder of a replayed step, which op made the first bad value; written at once."""
        path = names.origin_path(self.folder, rank=self.rank)
        self._attempt(lambda: write_atomically(path, to_json(object_of(origin), indent=1).encode()))

    def origin_tensors(self) -> TensorWriter:
        """Return the file for that op's inputs and results, to be used as a block."""
        return TensorWriter(names.origin_tensors_path(self.folder, rank=self.rank), attempt=self._attempt)

    def replay_batch(self) -> TensorWriter:
        """Return the file for what came into a replayed step from outside, to be used as a block."""
        return TensorWriter(names.batch_of_replay_path(self.folder, rank=self.rank), attempt=self._attempt)

    def replay_state(self) -> TensorWriter:
        """Return the file for the state before a replayed step, to be used as a block."""
        return TensorWriter(names.state_path(self.folder, rank=self.rank), attempt=self._attempt)

    def write_replay_tape(self, tape: Mapping[str, JsonValue]) -> None:
        """Say, in the folder of a replayed step, what the loop did in it; written at once."""
        path = names.tape_path(self.folder, rank=self.rank)
        self._attempt(lambda: write_atomically(path, to_json(tape).encode()))

    def write_probe(self, probe: Mapping[str, JsonValue]) -> None:
        """Take what a probe measured, as one JSON object."""
        path = self.folder / names.PROBES_NAME
        self._attempt(lambda: self._lines.setdefault(path, []).append(to_json(probe)))

    def tensors(self, step: int) -> TensorWriter:
        """Return the file for whole tensors of a step, to be used as a block."""
        return TensorWriter(names.tensors_path(self.folder, rank=self.rank, step=step), attempt=self._attempt)

    def batch(self, index: int) -> TensorWriter:
        """Return the file for one of the first batches, to be used as a block."""
        return TensorWriter(names.batch_path(self.folder, rank=self.rank, index=index), attempt=self._attempt)

    def update_info(self, info: RunInfo) -> None:
        """Replace what run.json says, at once; only rank 0 writes it."""
        self.info = info
        if self.rank == 0:
            self._attempt(lambda: write_info(self.folder, info))

    def note(self, text: str) -> None:
        """Add a sentence to the notes in run.json."""
        self.update_info(replace(self.info, notes=(*self.info.notes, text)))

    def flush(self) -> None:
        """Write everything that was collected."""
        self._attempt(self._flush)

    def close(self, *, status: Status = "finished") -> None:
        """Write what is left, and in run.json when and how the run ended."""
        if not self._is_closed:
            self._is_closed = True
            self.flush()
            self.update_info(replace(self.info, status=status, finished=_now()))
            self._attempt(self._complete_mirror)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(status="finished" if kind is None else "failed")

    def _add(self, writer: PartWriter, columns: EventColumns | ParameterColumns | HashColumns) -> None:
        self._send(writer.add(columns.to_arrow()))

    def _flush(self) -> None:
        for writer in self._tables:
            self._send(writer.flush())
        lines, self._lines = self._lines, {}
        for path, texts in lines.items():
            append_lines(path, texts)

    def _send(self, path: Path | None) -> None:
        """Have a finished file copied to the mirror, if there is one that works."""
        if self._mirror is not None and path is not None:
            self._mirror.send(path)

    def _complete_mirror(self) -> None:
        if self._mirror is not None:
            for path in names.files_of_rank(self.folder, self.rank):
                self._mirror.send(path)
            self._mirror.close()

    def _give_up_failed_mirror(self) -> None:
        if self._mirror is not None and self._mirror.failure is not None:
            failed, self._mirror = self._mirror, None
            warnings.warn(
                f"roundoff stopped copying '{self.folder}' to '{failed.url}'; the recording goes on.\n"
                f"  why: {failed.failure}",
                MirrorStoppedWarning,
                stacklevel=4,
            )

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do it, unless the writer has stopped; turn a failure into the one warning, or into an error if strict."""
        if self.stopped is not None or os.getpid() != self._process:
            return
        with self._lock:
            try:
                action()
            except Exception as error:
                self._stop(error)
        self._give_up_failed_mirror()

    def _stop(self, error: Exception) -> None:
        reason = _describe(error)
        if self._strict:
            raise RunFolderError.explain(f"The run in '{self.folder}' cannot be written.", why=reason) from error
        self.stopped = reason
        self._lines.clear()
        for writer in self._tables:
            writer.forget()
        if self.rank == 0:
            with contextlib.suppress(OSError):
                write_info(self.folder, replace(self.info, notes=(*self.info.notes, f"Recording stopped: {reason}")))
        warnings.warn(
            f"roundoff stopped recording to '{self.folder}'; the training goes on.\n  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=4,
        )


def _refuse_taken(folder: Path, rank: int, *, is_shared: bool) -> None:
    has_info = (folder / names.INFO_NAME).exists()
    taken = rank in names.ranks_with_files(folder) or (rank == 0 and has_info and not is_shared)
    if taken:
        raise RunFolderError.explain(
            f"'{folder}' already holds a run.",
            why="a run is never written over.",
            fix="name another folder, or remove this one.",
        )


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return f"{type(error).__name__}: {error}."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
