import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.experiments.engine.process_pool import Task, TaskOutcome
from roundoff.experiments.sweep import sweep_folder as run_sweep

TINY = """
[settings]
width = 4
steps = 2
[axes]
recipe = ["fp32", "O2"]
batch_size = [16, 32]
"""


@pytest.fixture(autouse=True)
def in_a_folder_with_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let O2 fail and everything else answer at once."""

    def run_tasks(tasks: list[Task], *, jobs: int, on: str, on_result: object) -> None:
        assert callable(on_result)
        for task in tasks:
            if task.argument.recipe == "O2":
                on_result(TaskOutcome(task=task, failure="killed by SIGKILL (possibly out of memory)", seconds=0.5))
            else:
                on_result(TaskOutcome(task=task, value={"top1": 0.5, "seconds": 1.25, "skipped": 2}))

    monkeypatch.setattr(run_sweep, "run_tasks", run_tasks)


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["sweep", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.usefixtures("quick")
def test_prints_a_row_each_and_ends_with_1_if_one_crashed():
    result = invoke("tiny.toml")
    assert result.stdout == (
        "recipe  batch_size  top-1  skipped   time  note\n"
        "fp32    16          0.500        2  1.2 s\n"
        "fp32    32          0.500        2  1.2 s\n"
        "O2      16              -        -  0.5 s  failed: killed by SIGKILL (possibly out of memory)\n"
        "O2      32              -        -  0.5 s  failed: killed by SIGKILL (possibly out of memory)\n"
        "\n"
        "4 rows: 2 failed; best is 'fp32, 16' with top-1 0.500, tied with 1 other.\n"
    )
    assert result.exit_code == 1


@pytest.mark.usefixtures("quick")
def test_says_a_line_for_each_finished_row():
    result = invoke("tiny.toml", "--only", "16")
    assert result.stderr == (
        "[1/2] fp32, 16: top-1 0.500, 2 skipped, 1.2 s\n"
        "[2/2] O2, 16: failed: killed by SIGKILL (possibly out of memory)\n"
        "page  runs/tiny/report.html\n"
    )


@pytest.mark.usefixtures("quick")
def test_several_patterns_add_up():
    result = invoke("tiny.toml", "--only", "fp32, 16", "--only", "O2, 16")
    assert [line.partition(":")[0] for line in result.stderr.splitlines()[:2]] == ["[1/2] fp32, 16", "[2/2] O2, 16"]
    assert "matches 'O9'" in invoke("tiny.toml", "--name", "other", "--only", "fp32", "--only", "O9").stderr


@pytest.mark.usefixtures("quick")
def test_kept_rows_are_said_to_be_kept():
    invoke("tiny.toml", "--only", "fp32")
    result = invoke("tiny.toml", "--only", "fp32", "--resume")
    assert result.stderr.splitlines()[0] == "[1/2] fp32, 16: top-1 0.500, 2 skipped, 1.2 s (kept)"
    assert result.exit_code == 0


@pytest.mark.usefixtures("quick")
def test_a_taken_folder_is_an_error_that_names_the_way_out():
    invoke("tiny.toml")
    result = invoke("tiny.toml")
    assert result.exit_code == 2
    assert "fix: --resume trains what is missing; --name NEW starts in another folder." in result.stderr
    assert invoke("tiny.toml", "--name", "other", "--only", "fp32").exit_code == 0
    assert Path("runs/other/rows.jsonl").exists()


@pytest.mark.usefixtures("quick")
def test_csv_and_json_hold_every_row():
    result = invoke("tiny.toml", "--csv", "rows.csv", "--json")
    rows = json.loads(result.stdout)
    lines = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert [row["labels"]["recipe"] for row in rows] == [line["recipe"] for line in lines] == ["fp32"] * 2 + ["O2"] * 2
    assert rows[0]["settings"]["batch_size"] == 16
    assert lines[2]["failure"].startswith("killed by SIGKILL")


@pytest.mark.usefixtures("quick")
def test_a_finished_sweep_is_shown_again_from_its_folder_alone():
    trained = invoke("tiny.toml")
    Path("tiny.toml").unlink()
    page = Path("runs/tiny/report.html")
    before = page.read_text()
    page.unlink()
    shown = invoke("--show", "runs/tiny")
    assert shown.stdout == trained.stdout
    assert shown.stderr == "page  runs/tiny/report.html\n"
    assert (shown.exit_code, page.read_text()) == (1, before)


@pytest.mark.usefixtures("quick")
def test_a_half_finished_sweep_is_shown_with_what_it_has():
    invoke("tiny.toml")
    rows = Path("runs/tiny/rows.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:1]))
    shown = invoke("--show", "runs/tiny")
    assert shown.stdout.splitlines()[1:] == [
        "fp32    16          0.500        2  1.2 s",
        "",
        "1 of 4 rows so far: none went non-finite; best is 'fp32, 16' with top-1 0.500.",
    ]
    assert len(json.loads(invoke("--show", "runs/tiny", "--json").stdout)) == 1


def test_a_folder_that_is_no_sweep_cannot_be_shown():
    result = invoke("--show", "runs")
    assert result.exit_code == 2
    assert result.stderr.startswith("SweepError: 'runs' holds no sweep.\n")


def test_what_trains_does_not_go_with_show():
    for words in (["tiny.toml"], ["--only", "fp32"], ["--steps", "2"], ["--resume"], ["--name", "other"]):
        result = invoke("--show", "runs/tiny", *words)
        assert result.exit_code == 2
        assert result.stderr.startswith("UsageError: --show cannot be combined with options for training.\n")


def test_a_folder_in_the_place_of_a_file_leads_to_show():
    Path("runs").mkdir()
    assert "fix: to print what was trained there: roundoff sweep --show runs\n" in invoke("runs").stderr


def test_a_csv_file_that_cannot_be_written_is_an_error_before_anything_is_trained():
    result = invoke("tiny.toml", "--csv", "nowhere/rows.csv")
    assert result.exit_code == 2
    assert result.stderr == (
        "UsageError: 'nowhere/rows.csv' cannot be written.\n  why: there is no folder 'nowhere'.\n"
    )
    assert not Path("runs").exists()


def test_an_interrupt_says_how_to_resume_with_the_same_options(monkeypatch: pytest.MonkeyPatch):
    def run_tasks(tasks: list[Task], *, jobs: int, on: str, on_result: object) -> None:
        assert callable(on_result)
        on_result(TaskOutcome(task=tasks[0], value={"top1": 0.5}))
        raise KeyboardInterrupt

    monkeypatch.setattr(run_sweep, "run_tasks", run_tasks)
    result = invoke("tiny.toml", "--jobs", "2", "--only", "fp32, *", "--only", "fp32", "--runs", "my runs", "--json")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "1 of 2 rows are kept. To resume: "
        "roundoff sweep tiny.toml --jobs 2 --only 'fp32, *' --only fp32 --json --runs 'my runs' --resume"
    )
    assert "1 of 2 rows so far" in Path("my runs/tiny/report.html").read_text()


def test_trains_for_real():
    result = invoke("tiny.toml", "--jobs", "0", "--only", "fp32, 16")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "recipe  batch_size  top-1   saved   time"


def test_lists_the_sweeps_that_come_along():
    lines = invoke("--list").stdout.splitlines()
    names = ["activations", "fixed-point", "loss-scaling", "norm-statistics", "underflow"]
    assert [line.split()[0] for line in lines] == names
    assert all(len(line) <= 140 for line in lines)


def test_no_sweep_is_an_error():
    assert "roundoff sweep --list" in invoke().stderr


def test_an_error_in_the_file_ends_with_2():
    Path("bad.toml").write_text("[axes]\nlr = []")
    result = invoke("bad.toml")
    assert result.exit_code == 2
    assert result.stderr == (
        "SweepError: Axis 'lr' of 'bad.toml' is empty.\n"
        "  why: there is no value to train with.\n"
        "  fix: add one, or remove the axis.\n"
    )
