"""`roundoff compare` on two loss curves: what is printed, written, and the way it ends."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line

FALLING = [2.0 * 0.97**step + 0.5 + (0.01 if step % 2 else -0.01) for step in range(100)]
BROKEN = [*FALLING[:40], *(loss * 1.5**step for step, loss in enumerate(FALLING[40:], start=1))]


@pytest.fixture(autouse=True)
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(FALLING)))
    Path("b.log").write_text("".join(f"step {step} loss {loss}\n" for step, loss in enumerate(BROKEN)))
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(FALLING)]
    Path("same.jsonl").write_text("\n".join(lines))


def compare(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["compare", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_says_first_where_the_candidate_leaves_the_reference() -> None:
    result = compare("a.csv", "b.log")
    assert result.exit_code == 1
    first, identical, reference, candidate, end = result.output.splitlines()
    assert first.startswith("The candidate leaves the reference at step 40 and stays above it: ")
    assert identical == "  identical for the first 40 steps"
    assert reference.endswith("  falls from 2.24 to 0.613")
    assert "explodes at step 4" in candidate
    assert end.startswith("  at the end 0.6")


def test_ends_with_0_where_nothing_differs() -> None:
    result = compare("a.csv", "same.jsonl")
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "The curves are identical in all 100 steps that both have."


def test_exit_zero_is_kept_to() -> None:
    assert compare("a.csv", "b.log", "--exit-zero").exit_code == 0


def test_a_table_of_the_steps_is_printed_and_written() -> None:
    lines = compare("a.csv", "b.log", "--table", "--csv", "steps.csv").output.splitlines()
    assert len(lines) == 5 + 2 + 100
    assert lines[7 + 39].split()[:4] == ["39", f"{FALLING[39]:.6g}", f"{FALLING[39]:.6g}", "+0"]
    assert lines[7 + 60].endswith("apart")
    with Path("steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["candidate"]) for row in rows] == BROKEN
    assert [row["apart"] for row in rows][39:42] == ["False", "True", "True"]


def test_the_comparison_is_printed_as_json() -> None:
    value = json.loads(compare("a.csv", "b.log", "--json").output)
    assert (value["differs"], value["first_divergence"], value["num_identical"]) == (True, 40, 40)
    assert value["shapes"]["candidate"]["kind"] == "exploded"
    assert value["stretches"][0]["lasts"] is True


def test_a_page_is_written_with_both_curves() -> None:
    compare("a.csv", "b.log", "--html", "page.html")
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.count("<svg") == 2
    assert "The candidate leaves the reference at step 40" in page
    assert page.count("<tr") == 1 + 100


def test_pattern_and_column_are_handed_on() -> None:
    Path("c.csv").write_text("step,x\n0,1\n1,2\n2,3\n")
    assert "identical" in compare("c.csv", "c.csv", "--column", "x").output
    assert "identical" in compare("b.log", "b.log", "--pattern", r"(?P<step>\d+) loss (?P<loss>\S+)").output


def test_a_missing_column_is_reported_and_ends_with_2() -> None:
    result = compare("a.csv", "a.csv", "--column", "nope")
    assert result.exit_code == 2
    assert "'a.csv' has no column 'nope'" in result.output
    assert "its columns are 'step', 'loss'" in result.output


def test_a_page_that_cannot_be_written_is_reported() -> None:
    result = compare("a.csv", "b.log", "--html", "nowhere/page.html")
    assert result.exit_code == 2
    assert "'nowhere/page.html' cannot be written" in result.output


def test_names_are_not_mapped_between_curves(tmp_path: Path):
    curve = tmp_path / "a.csv"
    curve.write_text("step,loss\n0,1.0\n1,0.5\n")
    result = CliRunner().invoke(command_line, ["compare", str(curve), str(curve), "--map", "names.txt"])
    assert result.exit_code == 2
    assert "why: it applies to runs, checkpoints and folders of tensors." in result.output
