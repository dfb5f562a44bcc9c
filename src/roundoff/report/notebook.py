"""What a notebook shows: findings, runs, watches and comparisons as HTML, and a run's whole page inside a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roundoff.diagnose.diagnosis import coverage_of, view_run
from roundoff.errors import RoundoffError
from roundoff.report.comparisons.comparison_report import ComparisonReport
from roundoff.report.findings_text import finding_parts, not_found_text, place_in_words
from roundoff.report.loss_curve import loss_curve
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.parts import Part, Sentence, to_html, to_text
from roundoff.report.run_page.document import run_page
from roundoff.runs import RULE_FAILED, Finding, Run, Severity
from roundoff.words import plural

_COLOURS = {Severity.ERROR: "#c62828", Severity.WARNING: "#b26a00", Severity.NOTE: "#607d8b"}
_GOOD = "#2e7d32"
_CODE_STYLE = "margin:.5em 0;padding:.5em;background:rgba(128,128,128,.12);overflow-x:auto"
_MAX_OTHERS = 6
_PAGE_HEIGHT = 720


def finding_html(finding: Finding) -> Html:
    """Show a finding in full."""
    return _card(to_html(finding_parts(finding)), colour=_COLOURS[finding.severity])


def run_html(run: Run) -> Html:
    """Show a run: what it was, its verdict, and its losses."""
    try:
        view = view_run(run)
        losses = [step.loss for step in view.run.metrics() if step.loss is not None]
    except RoundoffError as error:
        return _card(tag("pre", str(error)), colour=_COLOURS[Severity.ERROR])
    info = run.info
    about = ", ".join(filter(None, [info.status, info.recipe, plural(len(view.run.metrics()), "step")]))
    return join_html(
        _verdict(view.run, [finding for finding in view.findings if finding.rule != RULE_FAILED]),
        *([loss_curve(losses)] if losses else []),
        tag("p", tag("code", str(run.path)), f" ({about}). The whole page: ", tag("code", "run.page()")),
    )


def _verdict(run: Run, findings: Sequence[Finding]) -> Html:
    problems = [finding for finding in findings if finding.severity is not Severity.NOTE]
    if not problems:
        running = run.info.status == "running"
        words = "Nothing found so far." if running else not_found_text(coverage_of(run))
        nothing = _card(tag("p", words), colour=_GOOD if words == "Nothing found." else _COLOURS[Severity.WARNING])
        return join_html(nothing, _list(findings))
    return join_html(finding_html(problems[0]), _list([finding for finding in findings if finding is not problems[0]]))


def findings_html(findings: Sequence[Finding]) -> Html:
    """Show findings, the first in full."""
    first = finding_html(findings[0]) if findings else _card(tag("p", "Nothing found."), colour=_GOOD)
    return join_html(first, _list(findings[1:]))


def _list(findings: Sequence[Finding]) -> Html:
    shown = [tag("li", tag("b", place_in_words(each)), f": {each.title}") for each in findings[:_MAX_OTHERS]]
    more = len(findings) - len(shown)
    return tag("ul", *shown, *([tag("li", f"{more} more")] if more else [])) if shown else join_html()


def parts_html(parts: Sequence[Part], *, is_good: bool) -> Html:
    """Show an answer that consists of parts."""
    return _card(to_html(parts), colour=_GOOD if is_good else _COLOURS[Severity.ERROR])


def _card(content: Html, *, colour: str) -> Html:
    """Return content next to a coloured bar; a notebook has no style sheet of ours."""
    plain = Html(content.replace('<pre class="code">', f'<pre class="code" style="{_CODE_STYLE}">'))
    return tag("div", plain, style=f"border-left:4px solid {colour};padding:.1em .8em;margin:.4em 0", class_="roundoff")


@dataclass(frozen=True, slots=True)
class InlinePage:
    """A page that a notebook shows inside a cell; it holds its scripts, about 5 MB."""

    html: str

    def __repr__(self) -> str:
        return f"<a page of {len(self.html) / 1e6:.1f} MB>"

    def _repr_html_(self) -> Html:
        style = f"width:100%;height:{_PAGE_HEIGHT}px;border:1px solid rgba(128,128,128,.4)"
        return tag("iframe", srcdoc=self.html, sandbox="allow-scripts allow-downloads", style=style, title="roundoff")


def inline_page(run: Run) -> InlinePage:
    """Return the page that `roundoff report` writes, to be shown by a notebook."""
    return InlinePage(run_page(view_run(run)).html)


def comparison_text(comparison: Any) -> str:
    """Return what `roundoff compare` prints about a comparison."""
    return to_text(_parts(comparison)[0])


def comparison_html(comparison: Any) -> Html:
    """Show what `roundoff compare` prints about a comparison."""
    parts, differs = _parts(comparison)
    return parts_html(parts, is_good=not differs)


def _parts(comparison: Any) -> tuple[list[Part], bool]:
    """Return the answer of a comparison, and whether the two differ by more than formats explain."""
    report = _report(comparison)
    if report is None:
        return [Sentence(comparison.verdict)], comparison.differs
    return report.parts(), report.differs


def _report(comparison: Any) -> ComparisonReport | None:
    """Return what shows a comparison; None for one that has a verdict of its own.

    Known by its name: some of the modules load torch, which a notebook that looks at runs may not have.
    """
    match type(comparison).__name__:
        case "RunComparison":
            from roundoff.diagnose.against import findings_against
            from roundoff.report.comparisons.compared_runs import ComparedRuns

            finding = next(iter(findings_against(comparison)), None)
            return ComparedRuns(comparison=comparison, finding=finding, reference="reference", candidate="candidate")
        case "StepPairComparison":
            from roundoff.report.comparisons.compared_runs import ComparedSteps

            return ComparedSteps(comparison)
        case "CurveComparison":
            from roundoff.report.comparisons.compared_curves import ComparedCurves

            return ComparedCurves(comparison)
        case "CheckpointComparison":
            from roundoff.report.comparisons.compared_checkpoints import ComparedCheckpoints

            return ComparedCheckpoints(comparison)
        case "TensorsComparison":
            from roundoff.report.comparisons.compared_tensors import ComparedTensors

            return ComparedTensors(comparison)
        case "ResumeComparison":
            from roundoff.diagnose.resumed import finding_about_resumption
            from roundoff.report.comparisons.compared_resumption import ComparedResumption

            return ComparedResumption(comparison=comparison, finding=finding_about_resumption(comparison))
        case "LogprobComparison":
            from roundoff.diagnose.engines import finding_about_engines
            from roundoff.report.comparisons.compared_logprobs import ComparedLogprobs

            return ComparedLogprobs(comparison=comparison, finding=finding_about_engines(comparison))
        case _:
            return None
