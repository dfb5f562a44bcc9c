"""The tables of a run, as the tools of others read them: as they are, the columns of bytes included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roundoff.runs import Run, RunInfo, RunWriter


@pytest.fixture
def run(tmp_path: Path, make_events: Any) -> Run:
    with RunWriter.create(tmp_path / "run", RunInfo(), strict=True) as writer:
        for step in range(2):
            events = make_events(step)
            sketch = np.ma.masked_array(np.random.default_rng(step).normal(size=(len(events.step), 16)).astype("f4"))
            sketch[0] = np.ma.masked
            writer.write_events(replace(events, sketch=sketch))
            writer.flush()
    return Run.open(tmp_path / "run")


def sketches(values: Any) -> list[list[float] | None]:
    return [None if value is None else np.frombuffer(value, dtype="<f4").tolist() for value in values]


def expected(run: Run) -> tuple[dict[str, list[Any]], list[list[float] | None]]:
    rows = run.events()
    columns = {name: rows[name].to_list() for name in ("step", "site", "op", "l2", "hash", "parameter")}
    return columns, sketches(None if value is None else bytes(value) for value in rows["sketch"].to_list())


def test_events_become_a_data_frame(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    frame = run.events().to_pandas()
    columns, arrays = expected(run)
    for name, values in columns.items():
        assert [None if pandas.isna(value) else value for value in frame[name]] == values
    assert [None if value is None else value.tolist() for value in frame["sketch"]] == arrays
    assert arrays[0] is None
    assert arrays[1] is not None
    assert frame["histogram"].dtype == object
    assert len(run.events(columns=["site"]).to_pandas().columns) == 2  # with the rank


def test_pandas_reads_the_files_as_they_are(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(run.path / "events")
    columns, arrays = expected(run)
    assert frame["site"].tolist() == columns["site"]
    assert frame["hash"].tolist() == columns["hash"]
    assert sketches(None if pandas.isna(value) else value for value in frame["sketch"]) == arrays


def test_polars_reads_the_files_as_they_are(run: Run) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(run.path / "events" / "*.parquet")
    columns, arrays = expected(run)
    for name, values in columns.items():
        assert frame[name].to_list() == values
    assert sketches(frame["sketch"].to_list()) == arrays


def test_duckdb_reads_the_files_as_they_are(run: Run) -> None:
    duckdb = pytest.importorskip("duckdb")
    files = f"'{run.path}/events/*.parquet'"
    columns, arrays = expected(run)
    for name, values in columns.items():
        assert [value for (value,) in duckdb.sql(f'select "{name}" from {files}').fetchall()] == values
    assert sketches(value for (value,) in duckdb.sql(f"select sketch from {files}").fetchall()) == arrays
