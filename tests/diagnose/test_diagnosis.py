"""A whole diagnosis: the order of its findings, what is merged, and rules that fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.diagnosis import RULES
from roundoff.diagnose.rule import Code, Need, Rule
from roundoff.errors import RunFolderError
from roundoff.runs import Answer, Finding, Run, Severity
from tests.run_folders import write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run")


def finding(rule: str, *, step: int | None = 3, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, confidence=0.9, step=step, title="-", why="-", fix="-")


def gives(*findings: Finding) -> Rule:
    return rule_with(find=lambda run: list(findings))


def rule_with(*, find: Callable[[Run], list[Finding]], needs: tuple[Need, ...] = (), name: str = "planted") -> Rule:
    code = Code(name=name, means="-", fix="-")
    return Rule(order=0, checks=f"{name} things", find=find, codes=(code,), needs=needs)


def fails(run: Run) -> list[Finding]:
    raise ZeroDivisionError("by design\nand more")


def test_the_graver_finding_leads_then_the_earlier_rule_then_the_earlier_step(run: Run) -> None:
    spike = finding("loss-spike", step=1, severity=Severity.WARNING)
    late, early = finding("overflow", step=9), finding("domain-error", step=2)
    diagnosis = diagnose_run(run, rules=[gives(spike, early, late)])
    assert [found.rule for found in diagnosis.findings] == ["overflow", "domain-error", "loss-spike"]


def test_a_consequence_becomes_a_related_finding_of_its_cause(run: Run) -> None:
    spike = finding("loss-spike", step=5, severity=Severity.WARNING)
    (found,) = diagnose_run(run, rules=[gives(spike), gives(finding("overflow", step=4))]).findings
    assert found.rule == "overflow"
    assert [related.rule for related in found.related] == ["loss-spike"]


def test_a_cause_is_as_grave_as_what_follows_from_it(run: Run) -> None:
    cause = finding("accumulation-not-averaged", step=0, severity=Severity.WARNING)
    (found,) = diagnose_run(run, rules=[gives(finding("lr-too-high", step=1)), gives(cause)]).findings
    assert (found.rule, found.severity) == ("accumulation-not-averaged", Severity.ERROR)


def test_a_consequence_that_every_rank_shows_is_reported_once(run: Run) -> None:
    steps = [replace(finding("step-on-nonfinite-gradients", step=5), rank=rank) for rank in range(4)]
    (found,) = diagnose_run(run, rules=[gives(*steps), gives(finding("nonfinite-input", step=5))]).findings
    assert [related.rule for related in found.related] == ["step-on-nonfinite-gradients"]


def test_consequences_of_consequences_are_reported_with_the_first_cause(run: Run) -> None:
    chain = [finding("step-on-nonfinite-gradients"), finding("domain-error"), finding("cancellation")]
    (verdict,) = diagnose_run(run, rules=[gives(*chain)]).findings
    assert verdict.rule == "cancellation"
    assert [other.rule for other in verdict.related] == ["domain-error", "step-on-nonfinite-gradients"]


def test_a_rule_that_fails_becomes_a_note_and_hides_no_other(run: Run) -> None:
    diagnosis = diagnose_run(run, rules=[rule_with(find=fails, name="broken"), gives(finding("overflow")), gives()])
    assert [found.rule for found in diagnosis.findings] == ["overflow", "rule-failed"]
    note = diagnosis.findings[1]
    assert note.severity is Severity.NOTE
    assert note.why == "rule broken failed: ZeroDivisionError: by design"
    assert not diagnosis.is_complete
    assert [answer.answer for answer in diagnosis.answers] == [Answer.FAILED, Answer.FOUND, Answer.FINE]
    assert diagnosis.answers[0].reason == "by design"


def test_a_failure_says_whether_it_is_a_bug_or_a_damaged_run(run: Run) -> None:
    def cannot_read(run: Run) -> list[Finding]:
        raise RunFolderError("cut off")

    diagnosis = diagnose_run(run, rules=[rule_with(find=fails, name="broken"), rule_with(find=cannot_read)])
    assert [(failure.name, failure.error) for failure in diagnosis.failures] == [
        ("broken", "ZeroDivisionError: by design")
    ]
    assert [answer.answer for answer in diagnosis.answers] == [Answer.FAILED, Answer.FAILED]


def test_a_rule_without_anything_to_look_at_says_why(run: Run) -> None:
    def no_ranks(run: Run) -> str | None:
        return "there is one rank"

    rules = [rule_with(find=lambda run: [], needs=(lambda run: None, no_ranks)), gives()]
    answers = diagnose_run(run, rules=rules).answers
    assert [(answer.answer, answer.reason) for answer in answers] == [
        (Answer.NOTHING_TO_LOOK_AT, "there is one rank"),
        (Answer.FINE, None),
    ]


def test_what_a_rule_finds_counts_even_if_it_says_there_is_nothing(run: Run) -> None:
    rule = rule_with(find=lambda run: [finding("overflow")], needs=(lambda run: "nothing",))
    assert [answer.answer for answer in diagnose_run(run, rules=[rule]).answers] == [Answer.FOUND]


def test_in_an_empty_run_no_rule_finds_anything_and_none_calls_that_fine(run: Run) -> None:
    diagnosis = diagnose_run(run)
    assert diagnosis.findings == ()
    assert len(diagnosis.answers) == len(RULES)
    fine = [answer.checks for answer in diagnosis.answers if answer.answer is not Answer.NOTHING_TO_LOOK_AT]
    assert fine == ["crashes, kills and hangs of the process", "exceptions that ended the training"]
