"""`roundoff report`, on runs that hold much and little, and on what is no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.words import size_text
from tests.report.sample_runs import record_run, write_metrics_run


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["report", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_metrics_run(tmp_path / "run", [2.0, 1.5, float("nan")]).path


def test_writes_the_page_into_the_run_and_says_where_and_how_large(run: Path) -> None:
    result = invoke(str(run))
    page = run / "report.html"
    assert (result.exit_code, result.stdout) == (0, f"{page}   {size_text(page.stat().st_size)}\n")
    assert "The loss is not finite" in page.read_text() or "the loss is not finite" in page.read_text()


def test_a_second_page_replaces_the_first_and_the_run_still_opens(run: Path) -> None:
    assert invoke(str(run)).exit_code == 0
    assert invoke(str(run)).exit_code == 0


def test_writes_it_where_requested(run: Path, tmp_path: Path) -> None:
    assert invoke(str(run), "-o", str(tmp_path / "page.html")).exit_code == 0
    assert (tmp_path / "page.html").exists()
    assert not (run / "report.html").exists()


def test_holds_the_run_against_a_reference(tmp_path: Path) -> None:
    reference = record_run(tmp_path / "reference", is_broken=False).path
    candidate = record_run(tmp_path / "candidate", is_broken=False, eps=0.1).path
    result = invoke(str(candidate), "--against", str(reference), "--json")
    answer = json.loads(result.stdout)
    assert answer["sections"][:3] == ["verdict", "loss", "compared"]
    assert answer["findings"][0]["rule"] == "first-divergence"


def test_answers_a_machine_as_json(run: Path) -> None:
    answer = json.loads(invoke(str(run), "--json").stdout)
    assert answer["page"] == str(run / "report.html")
    assert answer["size_bytes"] == (run / "report.html").stat().st_size
    assert answer["sections"] == ["verdict", "loss", "norms", "steps", "recipe", "settings"]
    assert answer["thinned"] == []
    assert [finding["rule"] for finding in answer["findings"]] == ["loss-nonfinite"]


def test_what_is_no_run_cannot_be_looked_at(tmp_path: Path) -> None:
    result = invoke(str(tmp_path))
    assert result.exit_code == 2
    assert "is not a run folder" in result.stderr
    assert not (tmp_path / "report.html").exists()


def test_a_reference_that_is_no_run_is_named(run: Path, tmp_path: Path) -> None:
    result = invoke(str(run), "--against", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert f"'{tmp_path / 'nowhere'}' does not exist" in result.stderr


def test_a_file_that_cannot_be_written_is_named_with_the_way_out(run: Path, tmp_path: Path) -> None:
    result = invoke(str(run), "-o", str(tmp_path / "nowhere" / "page.html"))
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "-o FILE.html" in result.stderr


def test_no_file_but_a_page_is_replaced(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    for path in (script, run / "run.json"):
        before = path.read_bytes()
        result = invoke(str(run), "-o", str(path))
        assert result.exit_code == 2
        assert result.stderr == (
            f"UsageError: '{path}' exists and is not an HTML page.\n"
            "  why: it would be overwritten.\n"
            "  fix: name another file: -o FILE.html\n"
        )
        assert path.read_bytes() == before
