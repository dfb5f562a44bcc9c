"""Holds docs/run-folder.md to what the code writes."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from roundoff.runs import (
    TABLES,
    VERSION,
    Call,
    CallKind,
    Ending,
    Failure,
    Gap,
    MemoryLook,
    Metrics,
    RunInfo,
    RunWriter,
    StateFacts,
    TensorPlacement,
)
from roundoff.runs import flight as layout
from roundoff.runs.records.finding import FINDING_FIELDS
from roundoff.runs.records.probe import PROBE_TYPES

PAGE = (Path(__file__).parents[2] / "docs" / "run-folder.md").read_text()


def rows_under(heading: str) -> list[tuple[str, str, str]]:
    """Return the rows of the table in a section of the page."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_on_the_page_with_its_type_and_meaning(table):
    expected = [(c.name, c.type + (", nullable" if c.nullable else ""), c.meaning) for c in table.columns]
    assert rows_under(f"### {table.name}") == expected


def test_every_field_of_run_json_is_on_the_page(tmp_path: Path):
    RunWriter.create(tmp_path / "a", RunInfo())
    written = json.loads((tmp_path / "a" / "run.json").read_text())
    assert [name for name, _, _ in rows_under("## run.json")] == list(written)


def test_every_field_of_the_lines_is_on_the_page():
    assert [name for name, _, _ in rows_under("## metrics-rankR.jsonl")] == [field.name for field in fields(Metrics)]
    assert [name for name, _, _ in rows_under("## calls-rankR.jsonl")] == [field.name for field in fields(Call)]
    assert [name for name, _, _ in rows_under("## memory-rankR.jsonl")] == [field.name for field in fields(MemoryLook)]
    assert [name for name, _, _ in rows_under("## failures-rankR.jsonl")] == [field.name for field in fields(Failure)]
    assert [name for name, _, _ in rows_under("## states-rankR.jsonl")] == [field.name for field in fields(StateFacts)]
    placed = [name for name, _, _ in rows_under("## placements-rankR.jsonl")]
    assert placed == [field.name for field in fields(TensorPlacement)]
    assert [name for name, _, _ in rows_under("## gaps-rankR.jsonl")] == [field.name for field in fields(Gap)]


def test_every_field_of_a_finding_is_on_the_page():
    assert tuple(name for name, _, _ in rows_under("## findings.json")) == FINDING_FIELDS


def test_every_field_of_an_ending_is_on_the_page():
    assert [name for name, _, _ in rows_under("## ending-rankR.json")] == [field.name for field in fields(Ending)]


def test_every_field_of_a_saved_step_is_on_the_page(tmp_path: Path):
    from roundoff.record.loop.sites import Sites
    from roundoff.replay.saved.step_inputs import StepInputsWriter
    from roundoff.replay.state import Training
    from roundoff.replay.step_tape import StepTape

    before = StepInputsWriter(RunWriter.create(tmp_path / "a", RunInfo()), Training(), Sites())
    before.write_state()
    before.write_batch(StepTape(0))
    written = json.loads((tmp_path / "a" / "tape-rank0.json").read_text())
    section = PAGE.split("what the loop did with them:\n")[1].split("\n\nIn the arguments")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(written)


def test_the_words_of_the_flight_recorder_are_where_the_page_says():
    section = PAGE.split("\n## flight-rankR.bin\n")[1].split("\n## ")[0]
    words = (layout.COUNT, layout.STEP, layout.PHASE, layout.DEPTH, layout.OP, layout.NAMES_USED)
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [str(word) for word in (layout.PID, *words)]
    assert f"| {layout.STACK} to {layout.RING - 1} |" in section
    last = layout.NAMES_OFFSET // 8 - 1
    assert f"| {layout.RING} to {last} | the ring: record n, counted from 1, is at {layout.RING} + 2 (n mod" in section
    assert f"From byte {layout.NAMES_OFFSET} on there are {layout.NAMES_BYTES // 1024} KiB" in section
    assert tuple(re.findall(r"\d (\w+)", section.split("Kinds are ")[1].split(". From")[0])) == layout.KINDS


def test_the_page_is_about_the_version_that_is_written():
    assert PAGE.splitlines()[0] == f"# The run folder, version {VERSION}"


def test_every_kind_of_call_and_probe_is_on_the_page():
    kinds = next(meaning for name, _, meaning in rows_under("## calls-rankR.jsonl") if name == "call")
    assert re.findall(r"`(\w+)`", kinds) == list(get_args(CallKind))
    section = PAGE.split("\n## probes.jsonl\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert list(rows)[1:] == list(PROBE_TYPES)  # after the header
    for name, cls in PROBE_TYPES.items():
        written = [field.name for field in fields(cls) if field.name not in ("step", "probe")]
        assert re.findall(r"`(\w+)`(?![^(]*\))", rows[name]) == written
