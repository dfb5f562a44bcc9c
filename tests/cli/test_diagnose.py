"""`roundoff diagnose`, on runs that broke and runs that did not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roundoff.cli import command_line
from roundoff.runs import Run
from tests.run_folders import losses, write_run


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(command_line, ["diagnose", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def broken(tmp_path: Path) -> str:
    return str(write_run(tmp_path / "broken", losses(2.0, 1.5, float("nan"))).path)


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    return str(write_run(tmp_path / "healthy", losses(2.0, 1.5, 1.2)).path)


def test_names_what_broke_and_ends_with_1(broken: str) -> None:
    result = invoke(broken)
    assert result.exit_code == 1
    assert result.stdout.startswith("loss-nonfinite   step 2, forward\n  The loss is not finite: ")
    findings = Run.open(broken).findings()
    assert findings is not None
    assert [finding.rule for finding in findings] == ["loss-nonfinite"]


def test_a_healthy_run_is_one_line_and_ends_with_0(healthy: str) -> None:
    result = invoke(healthy)
    assert (result.exit_code, result.stdout) == (0, "Nothing found.\n")
    assert Run.open(healthy).findings() == []


def test_explains_what_each_rule_answered(healthy: str) -> None:
    text = invoke(healthy, "--explain").stdout
    assert "  fine                NaN and infinity in losses, gradients, weights and buffers\n" in text
    assert "  nothing to look at  jumps of the loss: only 3 finite losses, at least 21 needed\n" in text
    assert "native memory errors, under --valgrind: the script did not run under --valgrind\n" in text
    assert "  nothing to look at  ranks that drift apart: the training ran on one rank\n" in text


def test_answers_a_machine_as_json(broken: str) -> None:
    result = invoke(broken, "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert [(finding["rule"], finding["step"]) for finding in answer["findings"]] == [("loss-nonfinite", 2)]
    assert "exceptions that ended the training" in answer["checked"]
    answers = {each["checks"]: (each["answer"], each["reason"]) for each in answer["answers"]}
    assert answers["NaN and infinity in losses, gradients, weights and buffers"] == ("found", None)
    assert answers["exceptions that ended the training"] == ("fine", None)
    assert answers["ranks that drift apart"] == ("nothing to look at", "the training ran on one rank")


def test_writes_the_findings_for_code_hosts_and_ci_and_prints_them_too(broken: str, tmp_path: Path) -> None:
    sarif, junit = tmp_path / "found.sarif", tmp_path / "found.xml"
    result = invoke(broken, "--sarif", str(sarif), "--junit", str(junit))
    assert (result.exit_code, result.stdout) == (1, invoke(broken).stdout)
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert [(each["ruleId"], each["level"]) for each in results] == [("loss-nonfinite", "error")]
    assert '<failure type="loss-nonfinite"' in junit.read_text()


def test_a_file_that_cannot_be_written_is_named(broken: str, tmp_path: Path) -> None:
    result = invoke(broken, "--junit", str(tmp_path / "nowhere/found.xml"))
    assert result.exit_code == 2
    assert f"'{tmp_path}/nowhere/found.xml' cannot be written." in result.stderr


def test_exit_zero_lets_a_chain_go_on(broken: str) -> None:
    assert invoke(broken, "--exit-zero").exit_code == 0


def test_a_folder_that_is_no_run_cannot_be_looked_at(tmp_path: Path) -> None:
    result = invoke(str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_a_run_that_is_damaged_says_so_and_ends_with_2(healthy: str) -> None:
    path = Path(healthy) / "metrics-rank0.jsonl"
    path.write_text("broken\n" + path.read_text())
    result = invoke(healthy)
    assert result.exit_code == 2
    assert result.stdout.startswith("Nothing found, but some checks failed.\n")
    assert "metrics-rank0.jsonl' line 1 cannot be read." in result.stdout
