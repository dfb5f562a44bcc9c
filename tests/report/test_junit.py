"""What rules answered as JUnit XML, held to the attributes and elements that CI servers read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

from roundoff.diagnose import Diagnosis, diagnose_run
from roundoff.report.junit import to_junit
from roundoff.runs import Run, Severity
from tests.report.test_sarif import OVERFLOW
from tests.run_folders import losses, write_run

ATTRIBUTES = {
    "testsuites": {"tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
    "system-out": set(),
}
CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "error", "skipped", "system-out"},
}


def check_element(element: Element) -> None:
    """Check an element and all below it: attributes that exist, children that belong there."""
    assert set(element.attrib) == ATTRIBUTES[element.tag]
    assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    if element.tag == "testcase":
        assert len(element) <= 1
    for child in element:
        check_element(child)


def cases_of(run: Run, diagnosis: Diagnosis) -> dict[str, Element]:
    """Return the test cases by name, of XML that was checked."""
    root = fromstring(to_junit(run, diagnosis).decode())
    check_element(root)
    (suite,) = root
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.attrib["tests"]) == len(suite) == len(diagnosis.answers)
    return {case.attrib["name"]: case for case in suite}


def test_a_rule_is_a_test_case_that_passed_failed_or_was_skipped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5, float("nan")))
    cases = cases_of(run, diagnose_run(run))
    (failure,) = cases["NaN and infinity in losses, gradients, weights and buffers"]
    assert (failure.tag, failure.attrib["type"]) == ("failure", "loss-nonfinite")
    assert failure.attrib["message"].startswith("The loss is not finite: ")
    assert (failure.text or "").startswith("loss-nonfinite   step 2, forward\n")
    (skipped,) = cases["ranks that drift apart"]
    assert (skipped.tag, skipped.attrib["message"]) == ("skipped", "the training ran on one rank")
    assert len(cases["exceptions that ended the training"]) == 0
    assert {case.attrib["classname"] for case in cases.values()} == {"roundoff.run"}


def test_a_consequence_fails_its_own_rule_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5))
    diagnosis = diagnose_run(run)
    effect = replace(OVERFLOW, rule="exception")
    cases = cases_of(run, replace(diagnosis, findings=(replace(OVERFLOW, related=(effect,)),)))
    failed = [child.attrib["type"] for case in cases.values() for child in case if child.tag == "failure"]
    assert sorted(failed) == ["exception", "overflow"]


def test_a_note_is_the_output_of_a_test_that_passed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5))
    note = replace(OVERFLOW, severity=Severity.NOTE)
    cases = cases_of(run, replace(diagnose_run(run), findings=(note,)))
    (output,) = [child for case in cases.values() for child in case if child.tag == "system-out"]
    assert "fp16 bmm overflowed" in (output.text or "")


def test_a_rule_that_cannot_read_the_run_has_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5))
    path = run.path / "metrics-rank0.jsonl"
    path.write_text("broken\n" + path.read_text())
    cases = cases_of(run, diagnose_run(Run.open(run.path)))
    errors = [child for case in cases.values() for child in case if child.tag == "error"]
    assert "cannot be read" in errors[0].attrib["message"]


def test_names_may_hold_characters_that_no_xml_may(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", losses(2.0, 1.5), name="a\x1b[2J<&>\ud800")
    cases = cases_of(run, replace(diagnose_run(run), findings=(replace(OVERFLOW, title='\0 "]]>"'),)))
    assert {case.attrib["classname"] for case in cases.values()} == {"roundoff.a[2J<&>"}
