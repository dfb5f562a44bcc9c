"""A hostile run folder is refused before it has cost much: at most four times the size of the file, and 64 MB."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import EVENTS, Run, RunInfo, RunWriter, TensorFile
from tests.forked import run_forked

pytestmark = pytest.mark.slow


def events_of_one_value(path: Path, *, num_rows: int, text: str) -> None:
    """Write a part in which every row is the same, so that it takes next to no room."""
    columns: list[Any] = []
    for column in EVENTS.columns:
        if column.type == "string":
            codes = pa.array(np.zeros(num_rows, np.int32))
            columns.append(pa.DictionaryArray.from_arrays(codes, pa.array([text])))
        elif column.type.startswith("fixed"):
            columns.append(pa.nulls(num_rows, pa.binary(column.num_bytes)))
        else:
            columns.append(pa.array(np.zeros(num_rows, column.type)))
    pq.write_table(pa.table(columns, names=list(EVENTS.names)), path, compression="zstd")


def safetensors(path: Path, header: bytes) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def read_events(folder: Path) -> None:
    list(Run.open(folder).iter_events())


BOMBS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "run.json": (
        lambda run: (run / "run.json").write_bytes(b'{"readable_by": 1, "notes": [' + b"[]," * 3_000_000 + b"[]]}"),
        Run.open,
    ),
    "a nested run.json": (lambda run: (run / "run.json").write_bytes(b"[" * 1_000_000), Run.open),
    "a line": (
        lambda run: (run / "metrics-rank0.jsonl").write_bytes(b'{"step": [' + b"{}," * 3_000_000 + b"{}]}\n"),
        lambda run: Run.open(run).metrics(),
    ),
    "a line without end": (
        lambda run: (run / "metrics-rank0.jsonl").write_bytes(b"1" * 40_000_000),
        lambda run: Run.open(run).metrics(),
    ),
    "a header of tensors": (
        lambda run: safetensors(run / "a.safetensors", b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"),
        lambda run: TensorFile(run / "a.safetensors"),
    ),
    "rows that take no room": (
        lambda run: events_of_one_value(run / "events/rank0-part-00000.parquet", num_rows=2_000_000, text="a"),
        read_events,
    ),
    "a long name in every row": (
        lambda run: events_of_one_value(run / "events/rank0-part-00000.parquet", num_rows=20_000, text="a" * 50_000),
        read_events,
    ),
    "a long file of stacks": (
        lambda run: ((run / "crash-rank0.txt").touch(), os.truncate(run / "crash-rank0.txt", 2**33)),
        lambda run: Run.open(run).python_stacks(),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_four_times_its_size(tmp_path: Path, name: str):
    run = tmp_path / "run"
    RunWriter.create(run, RunInfo()).close()
    write, read = BOMBS[name]
    write(run)
    size = max(path.stat().st_blocks * 512 for path in run.rglob("*") if path.is_file())

    def refuse() -> str:
        with pytest.raises(RunFolderError) as caught:
            read(run)
        return str(caught.value)

    result = run_forked(refuse)
    print(f"{name}: {size / 1e6:.1f} MB, {result.grown_bytes / 1e6:.0f} MB, {result.value!s:.160}")
    assert result.status == 0, result.value
    assert result.grown_bytes <= 4 * size + 64 * 2**20
