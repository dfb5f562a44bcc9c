import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import EVENTS, TABLES, EventColumns, Interned
from roundoff.runs.files import table_parts
from roundoff.runs.files.columns import Rows
from roundoff.runs.files.parquet import to_parquet
from roundoff.runs.files.schema import Column
from roundoff.runs.files.table_parts import PartWriter, Selection, read_part, read_steps

EVERYTHING = Selection()


def write(folder: Path, *steps: EventColumns) -> Path:
    folder.mkdir(exist_ok=True)
    writer = PartWriter(folder, EVENTS, rank=0)
    for columns in steps:
        writer.add(columns.to_rows())
    path = writer.flush()
    assert path is not None
    return path


def noisy_step(num_rows: int) -> EventColumns:
    """A step as a small transformer leaves it: every number that can be noise is."""
    random = np.random.default_rng(0)

    def names(stem: str, count: int) -> Interned:
        codes = random.integers(0, count, num_rows).astype(np.int32)
        return Interned(codes=codes, values=[f"{stem}.{i}" for i in range(count)])

    def noise(scale: float = 1.0) -> np.ndarray:
        return random.standard_normal(num_rows) * scale * 10 ** random.uniform(-4, 1, num_rows)

    zeros = np.zeros(num_rows, dtype=np.int64)
    return EventColumns(
        step=np.full(num_rows, 3, dtype=np.int32),
        microbatch=np.zeros(num_rows, dtype=np.int16),
        phase=names("phase", 3),
        site=names("blocks", 80),
        op=names("aten", 40),
        nth=random.integers(0, 8, num_rows).astype(np.int32),
        output=names("output", 3),
        order=np.arange(num_rows, dtype=np.int32),
        parameter=names("weight", 60),
        source=names("model.py", 60),
        dtype=names("dtype", 3),
        shape=names("8x128", 40),
        device=Interned.constant("cpu", num_rows),
        num_elements=random.choice([64, 4096, 20_000], num_rows),
        min=noise().astype(np.float32),
        max=noise().astype(np.float32),
        mean=noise(),
        sum_abs=noise(1e3),
        l2=noise(1e2),
        num_nan=zeros,
        num_posinf=zeros,
        num_neginf=zeros,
        num_zero=random.poisson(0.2, num_rows),
        num_subnormal=zeros,
        hash=random.integers(0, 2**64, num_rows, dtype=np.uint64),
        sketch=(random.standard_normal((num_rows, 16)) * noise()[:, None]).astype(np.float32),
    )


def arrow_type(column: Column) -> pa.DataType:
    return pa.type_for_alias(column.type) if column.num_bytes is None else pa.binary(column.num_bytes)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_file_has_the_documented_types(table, tmp_path, make_events, parameters, hashes):
    columns = {"events": make_events(0), "parameters": parameters, "hashes": hashes}[table.name]
    schema = pq.read_schema(pa.BufferReader(to_parquet(columns.to_rows(), table)))
    assert schema == pa.schema([pa.field(c.name, arrow_type(c), nullable=c.nullable) for c in table.columns])


def test_steps_handed_over_one_by_one_are_one_part(tmp_path: Path, make_events):
    other = Interned.constant("head", 6)
    path = write(tmp_path, make_events(0), make_events(1, site=other), make_events(2))
    rows = read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING)
    assert rows["step"].to_list() == [0] * 6 + [1] * 6 + [2] * 6
    assert rows["site"].to_list()[5:8] == ["blocks.1.mlp", "head", "head"]


def test_many_rows_are_written_without_waiting(tmp_path: Path, make_events, monkeypatch):
    monkeypatch.setattr(table_parts, "MAX_BUFFERED_ROWS", 10)
    writer = PartWriter(tmp_path, EVENTS, rank=3)
    assert writer.add(make_events(0).to_rows()) is None
    assert writer.add(make_events(1).to_rows()) == tmp_path / "events" / "rank3-part-00000.parquet"
    assert writer.flush() is None


def test_rows_that_could_not_be_written_are_written_by_the_next_flush(tmp_path: Path, make_events):
    writer = PartWriter(tmp_path, EVENTS, rank=0)
    writer.add(make_events(0).to_rows())
    (tmp_path / "events").touch()
    with pytest.raises(OSError, match="exists"):
        writer.flush()
    (tmp_path / "events").unlink()
    path = writer.flush()
    assert path == tmp_path / "events" / "rank0-part-00000.parquet"
    assert read_steps(path) == {0}


def test_a_part_without_the_step_is_not_read_beyond_its_footer(tmp_path: Path, make_events):
    path = write(tmp_path, make_events(5), make_events(7))
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:4] + b"\0" * (len(content) - footer - 4) + content[-footer:])
    assert read_part(path, EVENTS, columns=["step"], selection=Selection(step=4)) is None
    assert read_part(path, EVENTS, columns=["step"], selection=Selection(step=range(8, 100))) is None
    with pytest.raises(RunFolderError, match="cut short or damaged"):
        read_part(path, EVENTS, columns=["step"], selection=Selection(step=7))


def test_steps_are_known_from_footers_where_they_suffice(tmp_path: Path, make_events):
    assert read_steps(write(tmp_path / "a", make_events(5))) == {5}
    assert read_steps(write(tmp_path / "b", make_events(5), make_events(9))) == {5, 9}


def test_a_file_cut_off_anywhere_is_named(tmp_path: Path, make_events):
    path = write(tmp_path, make_events(0))
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(RunFolderError, match=r"rank0-part-00000\.parquet' cannot be read"):
            read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING)


def test_a_damaged_file_is_named_if_it_matters(tmp_path: Path, make_events):
    path = write(tmp_path, make_events(0, num_rows=40))
    content = path.read_bytes()
    whole = read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING).to_list()
    random = np.random.default_rng(0)
    num_refused = num_harmless = 0
    for place in random.integers(0, len(content), 200):
        damaged = bytearray(content)
        damaged[place] ^= 1 << random.integers(0, 8)
        path.write_bytes(damaged)
        try:
            num_harmless += read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING).to_list() == whole
        except RunFolderError:
            num_refused += 1
    assert num_refused + num_harmless == 200
    assert num_refused > 60


def test_a_table_of_another_kind_is_named(tmp_path: Path, make_events):
    path = write(tmp_path, make_events(0))
    pq.write_table(pa.table({"step": pa.array([0], pa.int32()), "site": ["a"]}), path, compression="zstd")
    with pytest.raises(RunFolderError, match="column 'microbatch' lacks values"):
        read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING)
    pq.write_table(pa.table({"site": ["a"]}), path, compression="zstd")
    with pytest.raises(RunFolderError, match="rank0-part"):
        read_part(path, EVENTS, columns=["site"], selection=EVERYTHING)


def test_columns_of_other_versions_are_added_and_left_out(tmp_path: Path, make_events):
    path = write(tmp_path, make_events(0))
    table = pq.read_table(path).drop_columns(["sketch"]).append_column("mood", pa.array(["good"] * 6))
    pq.write_table(table, path, compression="zstd")
    rows = read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING)
    assert list(rows.columns) == list(EVENTS.names)
    assert rows["sketch"].is_null.sum() == 6


def test_a_recorded_step_of_1100_events_stays_small():
    columns = noisy_step(1100)
    size = len(to_parquet(columns.to_rows(), EVENTS))
    noise = 1100 * (8 + 64 + 5 * 8)  # hash, sketch and the five doubles, none of which has to compress
    assert size < 125_000
    assert size - noise < 60 * 1100


def test_a_step_of_very_many_alike_events_can_be_read(tmp_path: Path):
    rows = noisy_step(1000).to_rows().take(np.arange(300_001) // 301)
    writer = PartWriter(tmp_path, EVENTS, rank=0)
    writer.add(rows)
    parts = sorted((tmp_path / "events").iterdir())
    assert len(parts) == 3
    found = [read_part(path, EVENTS, columns=EVENTS.names, selection=EVERYTHING) for path in parts]
    assert Rows.concat([part for part in found if part is not None]).to_list() == rows.to_list()


def test_writing_a_recorded_step_costs_milliseconds(tmp_path: Path):
    columns = noisy_step(1100)
    writer = PartWriter(tmp_path, EVENTS, rank=0)
    best = float("inf")
    for _ in range(10):
        begin = time.process_time()
        writer.add(columns.to_rows())
        writer.flush()
        best = min(best, time.process_time() - begin)
    assert best < 0.015  # 3 ms on a slow core
    assert len(os.listdir(tmp_path / "events")) == 10
