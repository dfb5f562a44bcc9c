"""What is shown where a screen is narrow, dumb, no screen at all, or knows plain characters only."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.cli.terminal import show_plainly
from roundoff.console import can_draw, columns
from roundoff.progress import is_live, waiting


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


def written(to: io.TextIOWrapper) -> bytes:
    assert isinstance(to.buffer, io.BytesIO)
    return to.buffer.getvalue()


@pytest.mark.parametrize(("requested", "given"), [("60", 60), ("300", 100), ("100", 100), ("7", 40)])
def test_text_is_as_wide_as_the_screen_within_limits(
    requested: str, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", requested)
    assert columns() == given


@pytest.mark.parametrize(("term", "live"), [("xterm", True), ("dumb", False)])
def test_bars_move_on_terminals_that_are_not_dumb(term: str, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    here, there = os.openpty()
    with os.fdopen(there, "w") as terminal:
        assert is_live(terminal) is live
    os.close(here)


def test_nothing_moves_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with waiting("comparing"):
        pass
    assert capfd.readouterr() == ("", "")


def test_curves_and_rules_have_plain_stand_ins() -> None:
    ascii_only = stream("ascii")
    assert not can_draw(ascii_only)
    show_plainly(ascii_only)
    ascii_only.write("─── ▁▄█ long na… ünknown")
    assert written(ascii_only) == b"--- _:# long na~ ?nknown"


def test_a_stream_that_knows_them_is_left_alone() -> None:
    utf8 = stream("utf-8")
    show_plainly(utf8)
    assert utf8.errors == "strict"


def test_a_command_on_an_old_terminal_draws_with_plain_characters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("step,loss\n" + "".join(f"{i},{1 / (i + 1)}\n" for i in range(30)))
    done = subprocess.run(
        [sys.executable, "-m", "roundoff", "compare", "a.csv", "b.csv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"reference  #" in done.stdout


def test_what_a_script_of_others_prints_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text("print('\\u2588')\n")
    done = subprocess.run(
        [sys.executable, "-m", "roundoff", "record", "prints.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"UnicodeEncodeError" in done.stderr
