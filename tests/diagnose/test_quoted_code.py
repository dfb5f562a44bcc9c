"""Findings quote the lines that they are about, and no others."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.diagnose.quoted_code import quote_code
from roundoff.diagnose.rule import error
from roundoff.report.findings_text import findings_text
from roundoff.runs import Finding, Run
from tests.run_folders import write_run

SCRIPT = "import torch\n\nfor x in data:\n    y = torch.log(x)\n    y.sum().backward()\n"


def finding(source: str | None) -> Finding:
    return error(rule="domain-error", confidence=1.0, title="log of 0", why="x is 0", fix="clamp it", source=source)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "train.py").write_text(SCRIPT)
    os.utime(tmp_path / "train.py", (0, 0))
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path / "run", command=("python", "train.py"))


def test_the_line_and_those_around_it_are_in_the_evidence_and_on_the_console(run: Run) -> None:
    (found,) = quote_code(run, [finding("train.py:4")], is_at_hand=True)
    assert found.evidence == ({"code": SCRIPT.splitlines()[2:], "from_line": 3},)
    assert findings_text([found]).splitlines()[:4] == [
        f"{'domain-error':<90}train.py:4",
        "    3 | for x in data:",
        "  > 4 |     y = torch.log(x)",
        "    5 |     y.sum().backward()",
    ]


@pytest.mark.usefixtures("run")
def test_a_script_that_watches_itself_is_found_by_its_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    own = write_run(tmp_path / "own", command=(str(tmp_path / "train.py"), "--lr", "1"))
    (found,) = quote_code(own, [finding("train.py:4")], is_at_hand=True)
    assert found.evidence == ({"code": SCRIPT.splitlines()[2:], "from_line": 3},)


def test_a_file_that_has_changed_since_the_run_began_is_not_quoted(run: Run) -> None:
    os.utime("train.py")
    os.utime("train.py", (2e10, 2e10))
    assert quote_code(run, [finding("train.py:4")], is_at_hand=True) == [finding("train.py:4")]


def test_no_file_is_read_for_a_run_from_elsewhere(run: Run) -> None:
    assert quote_code(run, [finding("train.py:4")], is_at_hand=False) == [finding("train.py:4")]


@pytest.mark.parametrize("source", ["../train.py:4", "train.py", "train.py:9", "train.txt:1", "<stdin>:1", None])
def test_a_source_that_leads_nowhere_is_left_alone(run: Run, source: str | None) -> None:
    Path("train.txt").write_text("secret\n")
    assert quote_code(run, [finding(source)], is_at_hand=True) == [finding(source)]


def test_an_absolute_path_is_not_followed(run: Run, tmp_path: Path) -> None:
    source = f"{tmp_path / 'train.py'}:4"
    assert quote_code(run, [finding(source)], is_at_hand=True) == [finding(source)]


def test_a_later_diagnosis_keeps_what_an_earlier_one_quoted(run: Run) -> None:
    found = quote_code(run, [finding("train.py:4")], is_at_hand=True)
    run.write_findings(found)
    Path("train.py").unlink()
    assert quote_code(Run.open(run.path), [replace(found[0], evidence=())], is_at_hand=False) == found
