import csv
import re
from pathlib import Path

import pytest

from roundoff.errors import SweepError
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.sweep import sweep_folder as module
from roundoff.experiments.sweep.definition import read_sweep
from roundoff.experiments.sweep.sweep_folder import (
    SweepFolder,
    make_sweep_page,
    read_sweep_folder,
    run_sweep,
    write_results,
)
from roundoff.experiments.sweep.sweep_rows import SweepRow

SWEEP = """
[settings]
width = 4
steps = 3
[axes.recipe]
fp32 = "fp32"
"<script>alert(1)</script>" = { recipe = { base = "O2", loss_scale = 8.0 }, lr = 0.5 }
"""


@pytest.fixture
def sweep_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SWEEP)
    return path


def test_a_sweep_leaves_a_page_with_its_rows_curves_and_settings(sweep_file: Path, tmp_path: Path):
    folder = SweepFolder(path=tmp_path / "s")
    rows = run_sweep(read_sweep(sweep_file), folder=folder.path, jobs=2)
    text = folder.page.read_text(encoding="utf-8")
    assert "<h1>Sweep tiny</h1>" in text
    assert "2 rows: none went non-finite; best is " in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert text.count("<script") == 1
    assert re.findall(r'aria-label="loss \S+ to \S+ in (\d) steps"', text) == ["3", "3"]
    assert all(f'<td class="number" data-value="{row.top1}">{row.top1:.3f}</td>' in text for row in rows)
    common = text[text.index("Settings common to all rows") :]
    assert "<dt>width</dt><dd>4</dd></div><div><dt>steps</dt><dd>3</dd></div>" in common
    lines = list(csv.DictReader(folder.csv.read_text().splitlines()))
    assert [float(line["top1"]) for line in lines] == [row.top1 for row in rows]


def test_a_row_shows_the_settings_that_differ_from_other_rows(sweep_file: Path, tmp_path: Path):
    folder = SweepFolder(path=tmp_path / "s")
    run_sweep(read_sweep(sweep_file), folder=folder.path, jobs=0)
    page = make_sweep_page(read_sweep_folder(folder.path), folder)
    assert [dict(row.settings) for row in page.rows] == [
        {"recipe": "fp32", "lr": "not set"},
        {"recipe": "O2", "lr": "0.5"},
    ]
    assert page.rows[0].recipe is None
    assert page.rows[1].recipe is not None
    assert dict(page.common) == {"width": "4", "steps": "3", "threads": "1"}
    assert page.defaults["loss_scale"] == "recipe"


def test_an_interrupted_sweep_leaves_a_page_of_the_rows_so_far(sweep_file: Path, tmp_path: Path):
    def interrupt(row: SweepRow, is_new: bool) -> None:
        raise KeyboardInterrupt

    folder = SweepFolder(path=tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        run_sweep(read_sweep(sweep_file), folder=folder.path, jobs=0, on_row=interrupt)
    text = folder.page.read_text(encoding="utf-8")
    assert "1 of 2 rows so far" in text
    assert re.findall(r'<span class="outcome">(.*?)</span>', text) == ["trained", "not finished yet"]


def test_rows_that_failed_or_went_wrong_are_marked(sweep_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run_tasks(tasks: list[Task], *, jobs: int, on: str, on_result: object) -> None:
        assert callable(on_result)
        on_result(TaskOutcome(task=tasks[0], failure="killed by SIGKILL"))
        on_result(TaskOutcome(task=tasks[1], value={"top1": 0.1, "first_nonfinite_step": 2, "ended_nonfinite": True}))

    monkeypatch.setattr(module, "run_tasks", run_tasks)
    folder = SweepFolder(path=tmp_path / "s")
    run_sweep(read_sweep(sweep_file), folder=folder.path)
    page = make_sweep_page(read_sweep_folder(folder.path), folder)
    assert [(row.outcome, row.mark, row.note) for row in page.rows] == [
        ("failed", "failed", "failed: killed by SIGKILL"),
        ("went non-finite", "bad", ""),
    ]
    assert page.summary == "2 rows: 1 went non-finite, 1 failed; no row is good."


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(sweep_file: Path, tmp_path: Path):
    folder = SweepFolder(path=tmp_path / "s")
    run_sweep(read_sweep(sweep_file).only("fp32"), folder=folder.path, jobs=0)
    folder.page.unlink()
    folder.page.mkdir()
    with pytest.raises(SweepError, match=r"report\.html' cannot be written"):
        write_results(folder)
