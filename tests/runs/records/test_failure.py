"""Failures of roundoff's own checks are noted in the run and shown in one line."""

from pathlib import Path

from roundoff.runs import Failure, failures_line
from tests.run_folders import write_run


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
