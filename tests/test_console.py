"""Colours and links, where a stream shows them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from roundoff.console import Paint, has_colour
from roundoff.report.findings_text import findings_text
from roundoff.runs import Finding, Severity

FINDING = Finding(
    rule="overflow",
    severity=Severity.ERROR,
    confidence=1.0,
    site="fc\x1b[2J",
    step=3,
    source="train.py:4",
    title="fp16 matmul overflowed",
    why="the product exceeds 65504",
    fix="keep this layer wide, which costs little time since it is one of the smallest of the model:  "
    'apply_recipe(model, optimizer, "O2", overrides={"fc": "fp32"})',
    evidence=({"code": ["for x in data:", "    y = f(x)"], "from_line": 3},),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("environment", "on_terminal", "in_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "0"}, True, False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
    ],
)
def test_colours_are_for_terminals_unless_the_environment_says_otherwise(
    environment: dict[str, str], on_terminal: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (has_colour(Terminal()), has_colour(io.StringIO())) == (on_terminal, in_pipe)


def test_links_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Paint.of(Terminal()) == Paint(colours=True, links=True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Paint.of(io.StringIO()) == Paint(colours=True, links=False)


def test_the_colours_of_a_verdict_change_none_of_its_words() -> None:
    painted = findings_text([FINDING, FINDING], watched="watched 3 steps", paint=Paint(colours=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == findings_text([FINDING, FINDING], watched="watched 3 steps")
    first, _, marked, *_ = painted.splitlines()
    assert first.startswith("\x1b[1;31moverflow   fc\\x1b[2J   step 3\x1b[0m")  # what names hold is not obeyed
    assert marked == "\x1b[1m  > 4 |     y = f(x)\x1b[0m"


def test_the_source_line_is_a_link_where_its_file_is_known(tmp_path: Path) -> None:
    file = tmp_path / "my train.py"
    painted = findings_text([FINDING], paint=Paint(colours=True, links=True), file_of=lambda source: file)
    assert f"\x1b]8;;file://{tmp_path}/my%20train.py#4\x1b\\train.py:4\x1b]8;;\x1b\\" in painted.splitlines()[0]


def test_what_is_to_be_typed_is_on_a_line_of_its_own_where_there_is_no_room() -> None:
    assert findings_text([FINDING], width=80).splitlines()[-3:] == [
        "  fix    keep this layer wide, which costs little time since it is one of the",
        "         smallest of the model:",
        '           apply_recipe(model, optimizer, "O2", overrides={"fc": "fp32"})',
    ]
