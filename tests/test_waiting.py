"""What a terminal shows while a command works: how far it has come, and the time left."""

from __future__ import annotations

import io
import sys
import time

import pytest

from roundoff.progress import counting, waiting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_many_are_done_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with waiting("comparing"):
        for _ in counting(range(3), "step"):
            time.sleep(0.7)
    shown = terminal.getvalue()
    assert "comparing" in shown
    assert "step 2 of 3, 1 s left" in shown


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("comparing"):
        assert list(counting(range(3), "step")) == [0, 1, 2]
    assert list(counting("ab", "letter")) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
