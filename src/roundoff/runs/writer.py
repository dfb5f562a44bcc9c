"""Writes a run folder while the training goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from roundoff.errors import RunFolderError
from roundoff.files import make_folder, write_atomically
from roundoff.progress import say
from roundoff.runs.files import folder as names
from roundoff.runs.files.columns import EventColumns, HashColumns, ParameterColumns
from roundoff.runs.files.lines import append_lines
from roundoff.runs.files.plain_json import JsonValue, object_of, to_json
from roundoff.runs.files.schema import EVENTS, HASHES, PARAMETERS
from roundoff.runs.files.table_parts import PartWriter
from roundoff.runs.files.tensor_file import TensorWriter
from roundoff.runs.record_kinds import KIND_OF, LinesKind, Record
from roundoff.runs.records.finding import Gap, append_gap
from roundoff.runs.records.info import RunInfo, Status, write_info


class RunWriter:
    """Writes one rank's share of a run folder.

    Rows and lines are collected and written by `flush`; after it they survive the death of the process. When
    something cannot be written, the writer says so once, remembers why in `stopped`, and every later call does
    nothing; with `strict` it raises a `RunFolderError` instead. In a forked process (a data
    loader's worker) it does nothing.
    """

    def __init__(self, folder: Path, info: RunInfo, *, rank: int, strict: bool, warns: bool = True) -> None:
        self.folder = folder
        self.info = info
        self.rank = rank
        self.stopped: str | None = None
        """Why nothing is written any more, or None."""
        self._strict, self._warns = strict, warns
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._stderr = sys.stderr  # as it is now: a script may put something of its own there
        self._is_closed = False
        self._lines: dict[Path, list[str]] = {}
        self._paths: dict[type, Path] = {}
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
        writes_info: bool = False,
    ) -> RunWriter:
        """Make the folder, and run.json in it if this is rank 0.

        With `writes_info` it is a part of another run: run.json is written if there is none yet, and no warning is
        printed if the writer stops.

        A `RunFolderError` says that it cannot be made, or that this rank has already left files in it.
        """
        folder = Path(folder).absolute()  # the script may change the working directory
        info = replace(info, name=info.name or folder.resolve().name, started=info.started or _now())
        try:
            if writes_info:  # a part of another run, which is there already
                make_folder(folder.parent)
            make_folder(folder, parents=not writes_info)
            _refuse_taken(folder, rank, is_shared=writes_info)
            if rank == 0 or (writes_info and not names.info_path(folder).exists()):
                write_info(folder, info)
            make_folder(folder / EVENTS.name)
        except (OSError, MemoryError) as error:
            raise names.unwritable_error(folder, error) from error
        return cls(folder, info, rank=rank, strict=strict, warns=not writes_info)

    def write_events(self, columns: EventColumns) -> None:
        """Add events; the arrays may be reused when this returns."""
        self._attempt(lambda: self._events.add(columns.to_rows()))

    def write_parameters(self, columns: ParameterColumns) -> None:
        """Add the norms and shares of parameters."""
        self._attempt(lambda: self._parameters.add(columns.to_rows()))

    def write_hashes(self, columns: HashColumns) -> None:
        """Add hashes."""
        self._attempt(lambda: self._hashes.add(columns.to_rows()))

    def write(self, record: Record) -> None:
        """Add a record; most become a line of JSON, those with a file of their own are written at once."""
        kind = KIND_OF[type(record)]
        path = self._paths.get(type(record))
        if path is None:
            path = self._paths[type(record)] = kind.file(self.folder, rank=self.rank)
        if isinstance(kind, LinesKind):
            self._attempt(lambda: self._lines.setdefault(path, []).append(to_json(object_of(record))))
        else:
            self._attempt(lambda: write_atomically(path, to_json(object_of(record), indent=1).encode()))

    def origin_tensors(self) -> TensorWriter:
        """Return the file for that op's inputs and results, to be used as a block."""
        return self._tensor_writer(names.origin_tensors_path(self.folder, rank=self.rank))

    def replay_batch(self) -> TensorWriter:
        """Return the file for what came into a replayed step from outside, to be used as a block."""
        return self._tensor_writer(names.replay_batch_path(self.folder, rank=self.rank))

    def replay_state(self) -> TensorWriter:
        """Return the file for the state before a replayed step, to be used as a block."""
        return self._tensor_writer(names.state_path(self.folder, rank=self.rank))

    def write_replay_tape(self, tape: Mapping[str, JsonValue]) -> None:
        """Write into the folder of a replayed step what the loop did in it, at once."""
        path = names.tape_path(self.folder, rank=self.rank)
        self._attempt_with_data(lambda: write_atomically(path, to_json(tape).encode()))

    def tensors(self, step: int) -> TensorWriter:
        """Return the file for whole tensors of a step, to be used as a block."""
        return self._tensor_writer(names.tensors_path(self.folder, rank=self.rank, step=step))

    def batch(self, index: int) -> TensorWriter:
        """Return the file for one of the first batches, to be used as a block."""
        return self._tensor_writer(names.batch_path(self.folder, rank=self.rank, index=index))

    def update_info(self, info: RunInfo) -> None:
        """Replace what run.json says, at once; only rank 0 writes it."""
        self.info = info
        if self.rank == 0:
            self._attempt(lambda: write_info(self.folder, info))

    def note(self, text: str) -> None:
        """Add a sentence to the notes in run.json."""
        self.update_info(replace(self.info, notes=(*self.info.notes, text)))

    def move_to(self, folder: Path) -> None:
        """Move the run to another folder of the same disk, which does not exist or is empty."""
        with self._lock:
            self._flush()
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self.folder, folder)
            self.folder = folder
            self._paths.clear()
            for table in self._tables:
                table.folder = folder
        self.update_info(replace(self.info, name=folder.name))

    def move_to_chosen(self, choose: Callable[[], Path]) -> None:
        """Move the run to the folder that `choose` returns; where that fails it stays, and says so.

        A child that the script forked leaves it where it is.
        """
        if os.getpid() != self._process:
            return
        try:
            self.move_to(choose())
        except (OSError, MemoryError, RunFolderError) as error:
            self.say(f"the run stays in '{self.folder}'. Why: {error}")

    def say(self, text: str) -> None:
        """Print one line to stderr; not as a warning, whose filters belong to the script."""
        if os.getpid() == self._process:
            with contextlib.suppress(Exception):  # full, or gone: nothing of ours may reach the training
                stream = sys.stderr if getattr(self._stderr, "closed", False) else self._stderr
                say(" ".join(text.split()), stream=stream)

    def flush(self) -> None:
        """Write everything that was collected."""
        self._attempt(self._flush)

    def close(self, *, status: Status = "finished") -> None:
        """Write what is left, and in run.json when and how the run ended."""
        if not self._is_closed:
            self._is_closed = True
            self.flush()
            self.update_info(replace(self.info, status=status, finished=_now()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(status="finished" if kind is None else "failed")

    def _flush(self) -> None:
        for writer in self._tables:
            writer.flush()
        lines, self._lines = self._lines, {}
        for path, texts in lines.items():
            append_lines(path, texts)

    def _tensor_writer(self, path: Path) -> TensorWriter:
        return TensorWriter(path, attempt=self._attempt_with_data)

    def _attempt_with_data(self, action: Callable[[], object]) -> None:
        """Write tensors or their values, unless the run must not hold data."""
        if self.info.stores_data:
            self._attempt(action)

    def _attempt(self, action: Callable[[], object]) -> None:
        """Do it, unless the writer has stopped; turn a failure into one line on stderr, or into an error if strict."""
        if self.stopped is not None or os.getpid() != self._process:
            return
        with self._lock:
            try:
                action()
            except Exception as error:
                self._stop(error)

    def _stop(self, error: Exception) -> None:
        reason = _describe(error)
        if self._strict:
            raise RunFolderError.explain(f"The run in '{self.folder}' cannot be written.", why=reason) from error
        self.stopped = reason
        self._lines.clear()
        for writer in self._tables:
            writer.forget()
        append_gap(self.folder, Gap(kind="recording", why=reason, rank=self.rank))
        if self.rank == 0:
            with contextlib.suppress(OSError, MemoryError):
                write_info(self.folder, replace(self.info, notes=(*self.info.notes, f"Recording stopped: {reason}")))
        if self._warns:
            self.say(f"stopped recording to '{self.folder}'; the training goes on. Why: {reason}")


def _refuse_taken(folder: Path, rank: int, *, is_shared: bool) -> None:
    has_info = names.info_path(folder).exists()
    taken = rank in names.ranks_with_files(folder) or (rank == 0 and has_info and not is_shared)
    if taken:
        shown = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else folder
        raise RunFolderError.explain(
            f"'{shown}' already holds a run.",
            why="a run is never written over.",
            fix="name another folder, or remove this one.",
        )


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}."
    return f"{type(error).__name__}: {error}."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
