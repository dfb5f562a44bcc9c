"""A whole diagnosis: every rule, one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.diagnose.rules import FOLLOWS_FROM, PROCEDURE, RULES, Rule
from roundoff.runs import CachedRun, Finding, Run, Severity, order_findings

RULE_FAILED = "rule-failed"
"""The code of the note about a rule that could not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, the verdict first, and what was looked at and found fine."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether every rule could look."""
        return all(finding.rule != RULE_FAILED for finding in self.findings)


def diagnose_run(run: Run, *, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Apply every rule to a run and order what they find; a rule that fails becomes a note and hides no other."""
    kept = CachedRun.of(run)
    found: list[Finding] = []
    checked: list[str] = []
    for rule in rules:
        try:
            findings = rule.find(kept)
        except Exception as error:  # what it is does not matter: the others still have something to say
            findings = [_failure_note(rule, error)]
        found.extend(findings)
        if not findings:
            checked.append(rule.checks)
    verdict_first = order_findings(_with_consequences(found), procedure=PROCEDURE)
    return Diagnosis(findings=tuple(verdict_first), checked=tuple(checked))


def diagnose_and_save(run: Run, *, reference: Run | None = None) -> Diagnosis:
    """Diagnose a run, also against a reference if there is one, and write the findings into its folder."""
    rules: tuple[Rule, ...] = RULES
    if reference is not None:
        from roundoff.diagnose.against import against  # comparing loads the recipes, and half of torch with them

        rules = (*RULES, against(reference))
    diagnosis = diagnose_run(run, rules=rules)
    run.write_findings(diagnosis.findings)
    return diagnosis


def _with_consequences(findings: Iterable[Finding]) -> list[Finding]:
    """Put findings that a graver one explains among its related ones; what every rank says is said once."""
    known = order_findings(findings, procedure=PROCEDURE)
    causes: dict[int, int] = {}
    for place, finding in enumerate(known):
        explaining = (other for other in range(len(known)) if other != place and _explains(known[other], finding))
        cause = next(explaining, None)
        if cause is not None:
            causes[place] = cause
    roots = [_root_cause(place, causes) for place in range(len(known))]
    return [
        replace(finding, related=_once_each((*finding.related, *(known[i] for i in causes if roots[i] == place != i))))
        for place, finding in enumerate(known)
        if roots[place] == place
    ]


def _root_cause(place: int, causes: Mapping[int, int]) -> int:
    """Follow causes to the one that has none; of some that explain each other the first is taken."""
    path = [place]
    while path[-1] in causes:
        if causes[path[-1]] in path:
            return min(path[path.index(causes[path[-1]]) :])
        path.append(causes[path[-1]])
    return path[-1]


def _once_each(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(finding.rule, finding.step): finding for finding in findings}.values())


def _explains(cause: Finding, finding: Finding) -> bool:
    if finding.rule in (known.rule for known in cause.related):
        return True  # the rule that found the cause has told of it already
    if cause.rule in (known.rule for known in finding.related):
        return False
    if cause.rule not in FOLLOWS_FROM.get(finding.rule, ()) or cause.step is None or finding.step is None:
        return False
    if cause.severity is Severity.NOTE and finding.severity is not Severity.NOTE:
        return False
    return cause.step <= finding.step


def _failure_note(rule: Rule, error: Exception) -> Finding:
    first_line = str(error).partition("\n")[0] or "it says no more"
    return Finding(
        rule=RULE_FAILED,
        severity=Severity.NOTE,
        confidence=1.0,
        title=f"could not look for {rule.checks}",
        why=f"rule {rule.codes[0]} failed: {type(error).__name__}: {first_line}",
        fix="diagnose a complete copy of the run; if this one is complete, it is a bug of roundoff",
    )
