"""The demo before, during and after its story, which tests/flows/test_demo.py plays whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from roundoff.cli import command_line
from roundoff.cli import demo as demo_process
from roundoff.cli.demo import STORY, Chapter, DemoPlayer, DemoResult, DemoTraining, demo_result_text
from roundoff.errors import DemoError
from roundoff.runs import Finding, Severity, to_json
from tests.json_schemas import check_json

QUICK = Chapter(title="Which version is it?", words=("--version",), ends_with=0, seconds=1.0)


def test_a_chapter_is_its_title_its_command_and_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with DemoPlayer(tmp_path, [QUICK], quiet=False) as stage:
        (played,) = stage.play()
    title, command, *answer = capsys.readouterr().out.splitlines()
    assert title == "1. Which version is it?"
    assert command == "$ roundoff --version"
    assert tuple(answer) == (*played.output, "")
    assert played.output[0].startswith("roundoff ")


def test_nothing_is_shown_where_stdout_is_kept_for_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DemoPlayer(tmp_path, [QUICK], quiet=True) as stage:
        stage.say("a line")
        stage.play()
    assert capsys.readouterr() == ("", "")


def test_a_command_that_ends_otherwise_ends_the_demo_with_what_it_said(tmp_path: Path) -> None:
    story = [replace(QUICK, words=("runs", "nowhere")), QUICK]
    with (
        DemoPlayer(tmp_path, story, quiet=True) as stage,
        pytest.raises(DemoError, match=r"ended with 2 .*, not with 0"),
    ):
        stage.play()


def test_a_command_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(demo_process, "TIMEOUT_SECONDS", 1.0)
    story = [replace(QUICK, words=("record", "waits.py"))]
    with DemoPlayer(tmp_path, story, quiet=True) as stage, pytest.raises(DemoError, match="ended with -15"):
        stage.play()


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path, taken: str) -> None:
    place = tmp_path / "taken"
    if taken == "folder":
        place.mkdir()
        (place / "mine.txt").touch()
    else:
        place.touch()
    ended = CliRunner().invoke(command_line, ["demo", "--out", str(place)])
    assert ended.exit_code == 2
    assert "--out DIR" in ended.stderr
    assert ended.stdout == ""


def test_an_interrupt_is_quiet_and_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "roundoff", "demo", "--out", "here"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(60, process.kill)
        limit.start()
        while not process.stdout.readline().startswith("$ "):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, reported = process.communicate(timeout=60)
        limit.cancel()
    assert process.returncode == 130
    assert reported == "interrupted; the files so far are in here\n"
    assert (tmp_path / "here" / "digits.py").is_file()
    deadline = time.monotonic() + 10
    while _processes_in(tmp_path / "here") and time.monotonic() < deadline:
        time.sleep(0.05)  # what was killed takes a moment to be gone
    assert not _processes_in(tmp_path / "here")


def test_an_interrupt_while_a_command_is_being_started_loses_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, made = demo_process._start, []

    def interrupted(words: Sequence[str], folder: Path) -> subprocess.Popen[str]:
        made.append(start(words, folder))
        signal.raise_signal(signal.SIGINT)
        return made[0]

    monkeypatch.setattr(demo_process, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt), demo_process.running_command(["formats"], tmp_path):
        pytest.fail("the block is not entered")
    assert made[0].poll() is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _processes_in(folder: Path) -> list[str]:
    """Return the processes that work in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found += [entry.name] if Path(os.readlink(entry / "cwd")) == folder else []
            except OSError:
                continue  # it has ended, or is not ours
    return found


@pytest.fixture
def outcome() -> DemoResult:
    good, bad = (2.0, 1.0, 0.0), (2.0, float("nan"), float("nan"))
    finding = Finding(
        rule="overflow",
        severity=Severity.ERROR,
        confidence=0.99,
        step=1,
        title="fp16 matmul overflowed",
        source="digits.py:33",
        why="",
        fix="",
    )
    return DemoResult(
        folder=Path("here"),
        trained=(
            DemoTraining(recipe="fp32", accuracy=0.97, losses=good),
            DemoTraining(recipe="half", accuracy=0.1, losses=bad),
            DemoTraining(recipe="planned.toml", accuracy=0.965, losses=good),
        ),
        finding=finding,
        played=(),
        seconds=41.0,
    )


def test_the_accuracies_stand_side_by_side_under_the_verdict(
    outcome: DemoResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert demo_result_text(outcome, drawn=True).splitlines()[:6] == [
        "digits.py broke at digits.py:33, step 1: fp16 matmul overflowed. The planned recipe fixes it.",
        "",
        "recipe        accuracy  loss",
        "fp32            97.0 %  █▅▁  2.00 to 0.000",
        "half            10.0 %  █xx  NaN from step 1 on",
        "planned.toml    96.5 %  █▅▁  2.00 to 0.000",
    ]


def test_its_json_is_what_the_schema_says(outcome: DemoResult) -> None:
    check_json("demo", {"schema": "roundoff/demo/1", **json.loads(to_json(outcome.to_object()))})


def test_curves_are_left_out_where_the_terminal_cannot_show_them(outcome: DemoResult) -> None:
    text = demo_result_text(outcome, drawn=False)
    assert text.isascii()
    assert "half            10.0 %  NaN from step 1 on" in text


@pytest.mark.parametrize("width", [100, 60])
def test_what_was_written_is_named_in_lines_that_fit(
    outcome: DemoResult, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = tuple(replace(each, losses=each.losses * 20) for each in outcome.trained)
    lines = demo_result_text(replace(outcome, trained=long), drawn=True).splitlines()
    assert "page    here/report.html" in lines
    assert max(map(len, lines)) <= width
    assert all(len(f"1. {chapter.title}") <= 100 for chapter in STORY)


def test_the_page_about_it_lists_its_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "demo.md").read_text(encoding="utf-8")
    listed = [line.split("|")[2].strip().strip("`") for line in page.splitlines() if line.startswith("| ")][1:]
    assert listed == [chapter.command for chapter in STORY]
