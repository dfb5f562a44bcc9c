"""A whole diagnosis: the order of its findings, what is merged, and rules that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.diagnose import diagnose_run
from roundoff.diagnose.rules import NONFINITE, RULES, Rule
from roundoff.runs import Finding, Run, RunInfo, RunWriter, Severity


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with RunWriter.create(tmp_path / "run", RunInfo()):
        pass
    return Run.open(tmp_path / "run")


def finding(rule: str, *, step: int | None = 3, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, confidence=0.9, step=step, title="-", why="-", fix="-")


def gives(*findings: Finding) -> Rule:
    return Rule(checks="planted things", find=lambda run: list(findings), codes=("planted",))


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


def test_a_consequence_that_every_rank_shows_is_told_once(run: Run) -> None:
    steps = [replace(finding("step-on-nonfinite-gradients", step=5), rank=rank) for rank in range(4)]
    (found,) = diagnose_run(run, rules=[gives(*steps), gives(finding("nonfinite-input", step=5))]).findings
    assert [related.rule for related in found.related] == ["step-on-nonfinite-gradients"]


def test_consequences_of_consequences_are_told_with_the_first_cause(run: Run) -> None:
    chain = [finding("step-on-nonfinite-gradients"), finding("domain-error"), finding("cancellation")]
    (verdict,) = diagnose_run(run, rules=[gives(*chain)]).findings
    assert verdict.rule == "cancellation"
    assert [other.rule for other in verdict.related] == ["domain-error", "step-on-nonfinite-gradients"]


def test_a_rule_that_fails_becomes_a_note_and_hides_no_other(run: Run) -> None:
    broken = Rule(checks="broken things", find=fails, codes=("broken",))
    diagnosis = diagnose_run(run, rules=[broken, gives(finding("overflow")), gives()])
    assert [found.rule for found in diagnosis.findings] == ["overflow", "rule-failed"]
    note = diagnosis.findings[1]
    assert note.severity is Severity.NOTE
    assert note.why == "rule broken failed: ZeroDivisionError: by design"
    assert not diagnosis.is_complete
    assert diagnosis.checked == ("planted things",)


def test_every_rule_finds_nothing_in_an_empty_run(run: Run) -> None:
    diagnosis = diagnose_run(run)
    assert diagnosis.findings == ()
    assert diagnosis.checked == tuple(rule.checks for rule in RULES)


def test_every_code_belongs_to_one_rule() -> None:
    codes = [code for rule in RULES for code in rule.codes]
    assert len(codes) == len(set(codes))
    assert set(NONFINITE) <= set(codes)
