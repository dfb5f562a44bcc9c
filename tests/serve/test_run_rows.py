"""What the list says about runs, and that it reads again only what changed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.runs import Ending, RunInfo, RunWriter
from roundoff.runs.records.info import write_info
from roundoff.serve import run_rows
from roundoff.serve.http import Refusal
from roundoff.serve.run_rows import RunRow, RunRows
from roundoff.serve.runs_folder import RunsFolder
from tests.report.sample_runs import write_metrics_run


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRows:
    """The rows of a folder, read again whenever they are requested."""
    monkeypatch.setattr(run_rows, "FRESH_SECONDS", 0.0)
    return RunRows(RunsFolder(tmp_path))


def named(rows: RunRows) -> dict[str, RunRow]:
    return {row.name: row for row in rows.rows()}


def test_the_youngest_run_comes_first_and_a_damaged_one_last(rows: RunRows, tmp_path: Path) -> None:
    for name, started in (("a", "2026-01-01"), ("b", "2026-03-01"), ("c", "2026-02-01")):
        write_metrics_run(tmp_path / name, [1.0], started=started)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "run.json").touch()
    assert [row.name for row in rows.rows()] == ["b", "c", "a", "0"]


def test_runs_inside_an_experiment_are_listed_with_its_name_and_nothing_outside_is(
    rows: RunRows, tmp_path: Path
) -> None:
    write_metrics_run(tmp_path / "plan-1" / "trials" / "3", [2.0, 1.0])
    write_metrics_run(tmp_path / "a", [1.0])
    (tmp_path / "plan-1" / "link").symlink_to(tmp_path.parent)
    assert set(named(rows)) == {"a", "plan-1:trials:3"}
    assert rows.row("plan-1:trials:3").num_steps == 2
    for name in ("plan-1:..:a", "plan-1:link:x", ":a", "plan-1:trials:none", "none:3", "..:a"):
        with pytest.raises(Refusal):
            rows.row(name)


def test_a_row_is_the_same_object_until_its_run_changes(rows: RunRows, tmp_path: Path) -> None:
    for name in "ab":
        write_metrics_run(tmp_path / name, [1.0])
    before = named(rows)
    with (tmp_path / "a" / "metrics-rank0.jsonl").open("a") as file:
        file.write('{"step": 1, "loss": "inf"}\n')
    after = named(rows)
    assert after["b"] is before["b"]
    assert after["a"].version != before["a"].version
    assert (after["a"].num_steps, after["a"].losses) == (2, [1.0, float("inf")])


def test_a_run_that_crashed_fell_silent_or_ended_is_distinguished(rows: RunRows, tmp_path: Path) -> None:
    for name in ("crashed", "silent", "running"):
        run = write_metrics_run(tmp_path / name, [1.0])
        write_info(run.path, replace(run.info, status="running", finished=None))
    Ending(pid=1, signal=signal.SIGKILL).write(tmp_path / "crashed", rank=0)
    for path in (tmp_path / "silent").iterdir():
        if path.is_file():
            os.utime(path, (1e9, 1e9))
    states = {row.name: row.state.word for row in rows.rows() if row.state is not None}
    assert states == {"crashed": "crashed", "silent": "silent", "running": "running"}


def test_a_run_that_has_just_begun_has_no_steps_and_no_loss(rows: RunRows, tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo(command=("/home/me/train.py", "--lr", "1"))):
        (row,) = rows.rows()
        assert (row.num_steps, row.losses, row.findings, row.command) == (0, [], None, "train.py --lr 1")


def test_the_model_is_known_where_the_trainer_says_it(rows: RunRows, tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "a", [1.0], settings={"model": "resnet-small"})
    write_metrics_run(tmp_path / "b", [1.0], settings={"model": 3})
    assert {name: row.model for name, row in named(rows).items()} == {"a": "resnet-small", "b": None}


def test_a_run_that_is_removed_is_forgotten(rows: RunRows, tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "run", [1.0])
    assert len(rows.rows()) == 1
    (tmp_path / "run").rename(tmp_path.parent / "elsewhere")
    assert rows.rows() == []
    assert rows._kept == {}


def test_a_folder_that_vanished_has_no_runs(tmp_path: Path) -> None:
    assert RunRows(RunsFolder(tmp_path / "gone")).rows() == []


def test_a_name_that_is_no_text_costs_its_row_only(rows: RunRows, tmp_path: Path) -> None:
    write_metrics_run(tmp_path / "fine", [1.0])
    write_metrics_run(tmp_path / os.fsdecode(b"\xff\xfe"), [1.0])
    assert len(rows.rows()) == 2
    for row in rows.rows():
        row.version.encode()
