"""A whole diagnosis: the registry of rules, the verdict of all of them, and how much of the training was watched."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from roundoff.diagnose import data, loop, loss, model, nonfinite, numbers, process, ranks
from roundoff.diagnose.edits import with_edits
from roundoff.diagnose.quoted_code import quote_code
from roundoff.diagnose.rule import Code, FaultEffect, Rule, note
from roundoff.diagnose.trials import with_trials
from roundoff.errors import RoundoffError
from roundoff.runs import (
    RULE_FAILED,
    Answer,
    CachedRun,
    Failure,
    Finding,
    Gap,
    JsonValue,
    RuleAnswer,
    Run,
    Severity,
    order_findings,
)
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.compare.layouts.layout_comparison import LayoutComparison
    from roundoff.compare.runs.run_comparison import RunComparison

FAMILIES: Mapping[str, ModuleType] = {
    "NaN and infinity": nonfinite,
    "Numbers and formats": numbers,
    "The training loop": loop,
    "The loss": loss,
    "The model": model,
    "The data": data,
    "Several ranks": ranks,
    "The process": process,
}
"""The folders of rules, by the title that their codes have in the docs."""


def discover_rules(families: Iterable[ModuleType]) -> tuple[Rule, ...]:
    """Import every module of the given packages and return their rules, in the order of the decision."""
    modules = [
        importlib.import_module(f"{family.__name__}.{entry.name}")
        for family in families
        for entry in pkgutil.iter_modules(family.__path__)
    ]
    found = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    rules = sorted(found.values(), key=lambda rule: rule.order)
    for earlier, later in itertools.pairwise(rules):
        assert earlier.order != later.order, f"two rules at {later.order}: {earlier.checks}; {later.checks}"
    return tuple(rules)


def codes_of(rules: Iterable[Rule]) -> tuple[Code, ...]:
    """Return the codes of some rules, in their order."""
    return tuple(code for rule in rules for code in rule.codes)


def causes_by_code(rules: Sequence[Rule]) -> dict[str, frozenset[str]]:
    """Return for each code that may be a consequence the codes that explain it, with effects resolved."""
    found: dict[str, frozenset[str]] = {}
    for rule in rules:
        others = codes_of(other for other in rules if other is not rule)
        for code in rule.codes:
            named = {cause for cause in code.follows_from if isinstance(cause, str)}
            effects = {cause for cause in code.follows_from if isinstance(cause, FaultEffect)}
            known = {other.name for other in codes_of(rules) if effects.intersection(other.leads_to)}
            if FaultEffect.ANY in effects:
                known |= {other.name for other in others}
            if code.follows_from:
                found[code.name] = frozenset((named | known) - {code.name})
    return found


RULES = discover_rules(FAMILIES.values())
"""All rules that need no reference run, in the order of the decision."""

PROCEDURE = tuple(code.name for code in codes_of(RULES))
"""Every code, in the order of the decision."""


Watched: TypeAlias = Literal["complete", "partial", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was watched, and why not the rest."""

    watched: Watched
    num_steps: int
    """How many steps were watched, on the rank that has most."""
    reasons: tuple[str, ...] = ()
    """Why something was not watched; empty if everything was."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return what the JSON output of commands says about it."""
        return {"watched": self.watched, "not_watched": [*self.reasons]}


def coverage_of(run: Run, *, more: Sequence[Gap] = ()) -> Coverage:
    """Return how much of a training a run covers; `more` are gaps that could not be written into it."""
    try:
        return _coverage_of(run, more)
    except RoundoffError:  # rules that read the same file say which
        return Coverage(watched="partial", num_steps=0, reasons=("the run cannot be read completely",))


def _coverage_of(run: Run, more: Sequence[Gap]) -> Coverage:
    if run.info.settings.get("memcheck"):
        return Coverage(watched="complete", num_steps=0)  # valgrind looks at the whole process, not at steps
    steps = {rank: len(run.metrics(rank=rank)) or len(run.steps) for rank in run.ranks or [0]}
    num_steps = max(steps.values())
    reasons = list(dict.fromkeys(_gap_reasons([*run.gaps(), *more])))
    reasons += [f"rank {rank} was not watched" for rank in range(run.info.ranks) if num_steps and not steps.get(rank)]
    if not num_steps:
        return Coverage(watched="nothing", num_steps=0, reasons=("no training step was seen in this process", *reasons))
    if run.info.status == "running" and not reasons:
        reasons.append("the run has not ended" if run.ending() is None else "its process ended before the watch did")
    return Coverage(watched="partial" if reasons else "complete", num_steps=num_steps, reasons=tuple(reasons))


def _gap_reasons(gaps: Sequence[Gap]) -> list[str]:
    children = sum(gap.kind == "child" for gap in gaps)
    reasons = [str(gap) for gap in gaps if gap.kind != "child"]
    if children:
        words = plural(children, "child process", "child processes")
        reasons.append(f"{words} trained and {'was' if children == 1 else 'were'} not watched")
    return reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, the verdict first, and what each rule answered."""

    findings: tuple[Finding, ...]
    answers: tuple[RuleAnswer, ...]
    """One for each rule, in the order of the decision."""
    coverage: Coverage
    """How much of the training was watched."""
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


def diagnose_and_save(
    run: Run, *, reference: Run | None = None, gaps: Sequence[Gap] = (), code_is_at_hand: bool = False
) -> Diagnosis:
    """Diagnose a run, also against a reference if there is one, and write the result into its folder.

    `gaps` are those that could not be written into the run; `code_is_at_hand` says that its script ran here just now,
    so that findings can quote its lines.
    """
    rules: tuple[Rule, ...] = RULES
    if reference is not None:
        from roundoff.diagnose.against import reference_rule  # comparing loads the recipes, and half of torch with them

        rules = (*RULES, reference_rule(reference))
    diagnosis = diagnose_run(run, rules=rules, gaps=gaps)
    quoted = quote_code(run, diagnosis.findings, is_at_hand=code_is_at_hand)
    diagnosis = replace(diagnosis, findings=tuple(with_edits(run, quoted, is_at_hand=code_is_at_hand)))
    run.write_findings(diagnosis.findings, answers=diagnosis.answers, failures=diagnosis.failures)
    return diagnosis


def diagnose_run(run: Run, *, rules: Sequence[Rule] = RULES, gaps: Sequence[Gap] = ()) -> Diagnosis:
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
    findings = with_trials(cached, findings)
    related = _relate_consequences(findings, procedure=procedure, causes=causes_by_code(known))
    ordered = order_findings(related, procedure=procedure)
    return Diagnosis(
        findings=tuple(ordered),
        answers=tuple(answers),
        coverage=coverage_of(cached, more=gaps),
        failures=tuple(failures),
    )


def _apply(rule: Rule, run: Run) -> tuple[list[Finding], RuleAnswer]:
    found = rule(run)
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
        _with_consequences(finding, [known[i] for i in cause_of if roots[i] == index != i])
        for index, finding in enumerate(known)
        if roots[index] == index
    ]


def _with_consequences(finding: Finding, consequences: Sequence[Finding]) -> Finding:
    """Return a finding with what follows from it: it is as grave as the gravest of that."""
    severity = min((each.severity for each in (finding, *consequences)), key=list(Severity).index)
    return replace(finding, severity=severity, related=_once_each((*finding.related, *consequences)))


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
    return note(
        rule=RULE_FAILED,
        confidence=1.0,
        title=f"could not check {rule.checks}",
        why=f"rule {rule.codes[0].name} failed: {type(error).__name__}: {_first_line(error)}",
        fix="report it as a bug in roundoff" if is_bug else "diagnose a complete copy of the run",
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run, its findings, and its comparison with a reference if there is one."""

    run: CachedRun
    findings: Sequence[Finding]
    """The verdict first."""
    answers: Sequence[RuleAnswer] = ()
    """What each rule answered, if that is known."""
    failures: Sequence[Failure] = ()
    """Checks that failed inside roundoff."""
    reference: CachedRun | None = None
    comparison: RunComparison | None = None
    """With the reference, op by op."""
    layouts: LayoutComparison | None = None
    """With the reference, if ranks share the work differently there."""
    divergence: Finding | None = None
    """The first difference that the comparison found."""

    @property
    def name(self) -> str:
        """The run's own name, or that of its folder."""
        return self.run.info.name or self.run.path.resolve().name


def view_run(run: Run, *, against: Run | None = None) -> RunView:
    """Gather what is known about a run, and write nothing.

    Saved findings are used as they are. A run without them, or one that is compared with a reference, is diagnosed.
    """
    cached = CachedRun.of(run)
    if against is not None:
        return _view_against(cached, CachedRun.of(against))
    findings = cached.findings()
    if findings is not None:
        return RunView(run=cached, findings=findings, answers=cached.rule_answers(), failures=cached.failures())
    diagnosis = diagnose_run(cached)
    failures = [*cached.failures(), *diagnosis.failures]
    return RunView(run=cached, findings=diagnosis.findings, answers=diagnosis.answers, failures=failures)


def _view_against(run: CachedRun, reference: CachedRun) -> RunView:
    # Comparing loads the recipes and half of torch with them; a report without a reference should not wait for that.
    from roundoff.compare.layouts.layout_comparison import compare_layouts, layouts_differ
    from roundoff.compare.runs.run_comparison import compare_runs
    from roundoff.diagnose.against import findings_against, reference_rule
    from roundoff.diagnose.layout_findings import findings_about_layouts

    comparison, layouts = None, None
    if layouts_differ(reference, run):
        layouts = compare_layouts(reference, run)
        found = findings_about_layouts(layouts)
    else:
        comparison = compare_runs(reference, run)
        found = findings_against(comparison)
    diagnosis = diagnose_run(run, rules=(*RULES, replace(reference_rule(reference), find=lambda _: found)))
    probes = [failure for failure in run.failures() if failure.check != "rule"]
    return RunView(
        run=run,
        findings=diagnosis.findings,
        answers=diagnosis.answers,
        failures=[*probes, *diagnosis.failures],
        reference=reference,
        comparison=comparison,
        layouts=layouts,
        divergence=next(iter(found), None),
    )
