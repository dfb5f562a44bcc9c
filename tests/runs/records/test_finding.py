"""Failures of roundoff's own checks are noted in the run and shown in one line."""

import json
import math
from pathlib import Path

import pytest

from roundoff.errors import RunFolderError
from roundoff.runs import Failure, Finding, Run, Severity, failures_line, order_findings
from tests.run_folders import write_run


def finding(rule: str = "overflow", severity: Severity = Severity.ERROR, **fields) -> Finding:
    fields = {"confidence": 0.9, "title": "t", "why": "w", "fix": "f"} | fields
    return Finding(rule=rule, severity=severity, **fields)


WHOLE = finding(
    step=12,
    rank=0,
    phase="forward",
    site="blocks.3.attn",
    op="aten.bmm#0",
    source="model.py:41",
    evidence=({"absmax": 1.7e3}, "its inputs are finite", math.inf),
    related=(finding("loss-nonfinite", Severity.NOTE, step=13),),
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "a")


def test_findings_come_back_in_their_order(run: Run):
    assert run.findings() is None
    run.write_findings([WHOLE, finding(step=None)])
    assert run.findings() == [WHOLE, finding(step=None)]
    run.write_findings([])
    assert run.findings() == []


def test_a_finding_is_written_in_the_documented_shape(run: Run):
    run.write_findings([WHOLE])
    written = json.loads((run.path / "findings.json").read_text())["findings"][0]
    assert list(written) == [
        "id", "rule", "severity", "confidence", "step", "rank", "phase", "site", "op", "parameter", "source",
        "title", "why", "fix", "edits", "evidence", "related",
    ]  # fmt: skip
    assert written["severity"] == "error"
    assert written["related"][0]["rule"] == "loss-nonfinite"


def test_the_first_is_the_worst_then_what_the_procedure_decides_first_then_the_earliest_then_the_surest():
    note = finding("a", Severity.NOTE, step=0)
    warning = finding("a", Severity.WARNING, step=0)
    consequence = finding("loss-nonfinite", step=1)
    late = finding("overflow", step=9)
    unsure = finding("overflow", step=3, confidence=0.5)
    sure = finding("overflow", step=3, confidence=0.8)
    whenever = finding("overflow", step=None)
    unknown = finding("not-in-the-procedure", step=0)
    everything = [note, unknown, late, consequence, warning, whenever, unsure, sure]
    expected = [sure, unsure, late, whenever, consequence, unknown, warning, note]
    assert order_findings(everything, procedure=["overflow", "loss-nonfinite"]) == expected


def test_without_a_procedure_the_step_decides():
    assert [f.step for f in order_findings([finding("a", step=5), finding("b", step=2)])] == [2, 5]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{}", "it has no list 'findings'"),
        ('{"findings": [3]}', "3 is not an object"),
        ('{"findings": [{"rule": "overflow"}]}', "'severity' is missing"),
        ('{"findings": [{"rule": "a", "severity": "bad"}]}', "'bad' is not a valid Severity"),
        ('{"findings": [', "it is not JSON"),
    ],
)
def test_broken_findings_are_named(run: Run, content: str, why: str):
    (run.path / "findings.json").write_text(content)
    with pytest.raises(RunFolderError, match=rf"findings\.json' cannot be read\.\n  why: .*{why}"):
        run.findings()


def fail() -> Failure:
    try:
        raise KeyError("loss")
    except KeyError as error:
        return Failure.of(error, check="probe", name="half-batch", step=7)


def test_a_failure_says_what_was_raised_and_where() -> None:
    failure = fail()
    assert (failure.check, failure.name, failure.step) == ("probe", "half-batch", 7)
    assert failure.error == "KeyError: 'loss'"
    assert "in fail" in failure.traceback


def test_failures_of_the_watch_and_of_the_diagnosis_come_back_together(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fail())
    assert run.failures() == [fail()]
    rule = Failure(check="rule", name="overflow", error="ValueError")
    run.write_findings([], failures=[rule])
    assert run.failures() == [fail(), rule]
    assert run.findings() == []
    run.write_findings([])
    assert run.failures() == [fail()]


def test_a_run_without_failures_has_none(tmp_path: Path) -> None:
    assert write_run(tmp_path / "run").failures() == []
    assert failures_line([]) is None


def test_equal_failures_are_listed_once() -> None:
    assert failures_line([fail(), fail()]) == (
        "2 checks failed inside roundoff; please report: probe half-batch (KeyError: 'loss')"
    )


def test_ids_of_findings_without_a_site_differ_by_file_and_title():
    same = finding("exception", title="ValueError: 3 rows", source="train.py:7", step=1)
    assert same.id == finding("exception", title="ValueError: 40 rows", source="train.py:90", step=2).id
    others = [
        finding("exception", title="KeyError: 'x'", source="train.py:7"),
        finding("exception", title="ValueError: 3 rows", source="model.py:7"),
        finding("exception", title="ValueError: 3 rows", source="train.py:7", rank=1),
    ]
    assert len({same.id, *(each.id for each in others)}) == 4


def test_names_with_digits_are_no_figures():
    assert finding("tied", title="fc1 is tied").id != finding("tied", title="fc2 is tied").id
