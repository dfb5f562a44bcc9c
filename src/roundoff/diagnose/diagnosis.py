"""A whole diagnosis: every rule, one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roundoff.diagnose.rule import Rule
from roundoff.diagnose.rules import RULES, causes_by_code, codes_of
from roundoff.errors import RoundoffError
from roundoff.runs import RULE_FAILED, Answer, CachedRun, Failure, Finding, RuleAnswer, Run, Severity, order_findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, the verdict first, and what each rule answered."""

    findings: tuple[Finding, ...]
    answers: tuple[RuleAnswer, ...]
    """One for each rule, in the order of the decision."""
    failures: tuple[Failure, ...] = ()
    """Rules that failed because of a bug in roundoff, not because of a damaged run."""

    @property
    def is_clean(self) -> bool:
        """Whether there is neither an error nor a warning."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def is_complete(self) -> bool:
        """Whether no rule failed."""
        return all(answer.answer is not Answer.FAILED for answer in self.answers)


def diagnose_and_save(run: Run, *, reference: Run | None = None) -> Diagnosis:
    """Diagnose a run, also against a reference if there is one, and write the result into its folder."""
    rules: tuple[Rule, ...] = RULES
    if reference is not None:
        from roundoff.diagnose.against import reference_rule  # comparing loads the recipes, and half of torch with them

        rules = (*RULES, reference_rule(reference))
    diagnosis = diagnose_run(run, rules=rules)
    run.write_findings(diagnosis.findings, answers=diagnosis.answers, failures=diagnosis.failures)
    return diagnosis


def diagnose_run(run: Run, *, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """Apply every rule to a run and order the findings; a rule that fails becomes a note and hides no other."""
    cached = CachedRun.of(run)
    findings: list[Finding] = []
    answers: list[RuleAnswer] = []
    failures: list[Failure] = []
    for rule in rules:
        try:
            found, answer = _apply(rule, cached)
        except Exception as error:  # whatever it is, the other rules can still find something
            found, answer = [_failure_note(rule, error)], _answer(rule, Answer.FAILED, reason=_first_line(error))
            if not isinstance(error, RoundoffError):
                failures.append(Failure.of(error, check="rule", name=rule.codes[0].name))
        findings.extend(found)
        answers.append(answer)
    known = sorted(dict.fromkeys((*RULES, *rules)), key=lambda rule: rule.order)
    procedure = [code.name for code in codes_of(known)]
    related = _relate_consequences(findings, procedure=procedure, causes=causes_by_code(known))
    ordered = order_findings(related, procedure=procedure)
    return Diagnosis(findings=tuple(ordered), answers=tuple(answers), failures=tuple(failures))


def _apply(rule: Rule, run: Run) -> tuple[list[Finding], RuleAnswer]:
    found = rule.find(run)
    if found:
        return found, _answer(rule, Answer.FOUND)
    missing = rule.missing(run)
    return [], _answer(rule, Answer.FINE if missing is None else Answer.NOTHING_TO_LOOK_AT, reason=missing)


def _answer(rule: Rule, answer: Answer, *, reason: str | None = None) -> RuleAnswer:
    codes = tuple(code.name for code in rule.codes)
    return RuleAnswer(checks=rule.checks, codes=codes, answer=answer, reason=reason)


def _relate_consequences(
    findings: Iterable[Finding], *, procedure: Sequence[str], causes: Mapping[str, frozenset[str]]
) -> list[Finding]:
    """Move findings that an earlier one explains into its related findings, each code once per step."""
    known = order_findings(findings, procedure=procedure)
    cause_of: dict[int, int] = {}
    for index, finding in enumerate(known):
        others = (other for other in range(len(known)) if other != index)
        cause = next((other for other in others if _explains(known[other], finding, causes)), None)
        if cause is not None:
            cause_of[index] = cause
    roots = [_root_cause(index, cause_of) for index in range(len(known))]
    return [
        replace(
            finding, related=_once_each((*finding.related, *(known[i] for i in cause_of if roots[i] == index != i)))
        )
        for index, finding in enumerate(known)
        if roots[index] == index
    ]


def _root_cause(index: int, cause_of: Mapping[int, int]) -> int:
    """Follow causes to the one that has none; of findings that explain each other, the first."""
    path = [index]
    while path[-1] in cause_of:
        if cause_of[path[-1]] in path:
            return min(path[path.index(cause_of[path[-1]]) :])
        path.append(cause_of[path[-1]])
    return path[-1]


def _once_each(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple({(finding.rule, finding.step): finding for finding in findings}.values())


def _explains(cause: Finding, finding: Finding, causes: Mapping[str, frozenset[str]]) -> bool:
    if finding.rule in (related.rule for related in cause.related):
        return True  # the rule that found the cause has reported it already
    if cause.rule in (related.rule for related in finding.related):
        return False
    if cause.rule not in causes.get(finding.rule, ()) or cause.step is None or finding.step is None:
        return False
    if cause.severity is Severity.NOTE and finding.severity is not Severity.NOTE:
        return False
    return cause.step <= finding.step


def _failure_note(rule: Rule, error: Exception) -> Finding:
    is_bug = not isinstance(error, RoundoffError)
    return Finding(
        rule=RULE_FAILED,
        severity=Severity.NOTE,
        confidence=1.0,
        title=f"could not check {rule.checks}",
        why=f"rule {rule.codes[0].name} failed: {type(error).__name__}: {_first_line(error)}",
        fix="report it as a bug in roundoff" if is_bug else "diagnose a complete copy of the run",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
