"""What each rule answered as JUnit XML, which every CI server shows as tests: a rule is a test case."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from roundoff.report.findings_text import finding_text, message_of
from roundoff.runs import Answer, Finding, RuleAnswer, Run, Severity

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(run: Run, diagnosis: Diagnosis) -> bytes:
    """Return a diagnosis as JUnit XML, one test case per rule.

    A rule that found an error or a warning has failed, one with nothing to look at was skipped, and one that could not
    read the run has an error. What is only worth a note is output of a test case that passed.
    """
    found = list(_with_related(diagnosis.findings))
    name = run.info.name or run.path.resolve().name
    suite = Element("testsuite", name=_clean(f"roundoff {name}"), timestamp=run.info.started)
    for answer in diagnosis.answers:
        _add_case(suite, answer, [finding for finding in found if finding.rule in answer.codes], run_name=name)
    counts = Counter(child.tag for case in suite for child in case)
    numbers = {"tests": len(suite), "failures": counts["failure"], "errors": counts["error"]}
    root = Element("testsuites", {name: str(number) for name, number in numbers.items()})
    suite.attrib |= root.attrib | {"skipped": str(counts["skipped"]), "time": "0"}
    root.append(suite)
    indent(root)
    xml: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _with_related(findings: Iterable[Finding]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from _with_related(finding.related)


def _add_case(suite: Element, answer: RuleAnswer, findings: list[Finding], *, run_name: str) -> None:
    case = SubElement(suite, "testcase", classname=_clean(f"roundoff.{run_name}"), name=_clean(answer.checks), time="0")
    grave = [finding for finding in findings if finding.severity is not Severity.NOTE]
    text = _clean("\n\n".join(map(finding_text, findings)))
    if grave:
        failure = SubElement(case, "failure", type=grave[0].rule, message=_clean(message_of(grave[0])))
        failure.text = text
    elif answer.answer is Answer.FAILED:
        SubElement(case, "error", type="rule-failed", message=_clean(answer.reason or "it failed"))
    elif answer.answer is Answer.NOTHING_TO_LOOK_AT:
        SubElement(case, "skipped", message=_clean(answer.reason or str(answer.answer)))
    elif findings:
        SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    """Leave out characters that no XML may hold; names in a run may hold any."""
    return _NOT_IN_XML.sub("", text)
