import io
import re
import sys

import pytest

from roundoff.cli.sweep import SweepProgress
from roundoff.experiments.sweep.sweep_rows import SweepRow

GOOD = SweepRow(key="1", labels={"recipe": "O2 [bold]"}, settings={}, top1=0.5, seconds=1.0)
FAILED = SweepRow(key="2", labels={"recipe": "half"}, settings={}, failure="boom", note="failed: boom")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(patch: pytest.MonkeyPatch, *rows: SweepRow, **environment: str) -> str:
    """Return what a terminal of 100 columns gets."""
    terminal = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": "100", **environment}.items():
        patch.setenv(name, value)
    with patch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with SweepProgress(num_rows=len(rows), resume="roundoff sweep a.toml --resume") as progress:
            for row in rows:
                progress.row(row, True)
    return terminal.getvalue()


def test_a_terminal_has_a_bar_with_names_as_they_are(monkeypatch: pytest.MonkeyPatch):
    text = shown(monkeypatch, GOOD)
    assert "━" in text
    assert "O2 [bold]" in text
    assert "top-1" not in text


def test_a_row_that_failed_is_reported_at_once_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    assert "[2/2] half: failed: boom" in shown(monkeypatch, GOOD, FAILED)


def test_a_dumb_terminal_has_lines(monkeypatch: pytest.MonkeyPatch):
    assert shown(monkeypatch, GOOD, TERM="dumb") == "[1/1] O2 [bold]: top-1 0.500, 1.0 s\n"


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert coloured.search(shown(monkeypatch, GOOD, COLORTERM="truecolor"))
    assert not coloured.search(shown(monkeypatch, GOOD, NO_COLOR="1"))
