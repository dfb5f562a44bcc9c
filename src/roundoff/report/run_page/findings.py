"""The findings, worded as on the console, each with its fix and its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.diagnosis import RunView, coverage_of
from roundoff.report.findings_text import (
    code_of,
    describe_answer,
    edit_text,
    failure_lines,
    not_found_text,
    place_in_words,
    tried_text,
)
from roundoff.report.markup import Html, join_html, tag
from roundoff.report.parts import to_html
from roundoff.report.run_page.section import Section
from roundoff.runs import RULE_FAILED, Answer, Finding, JsonValue, RuleAnswer, Severity, to_json
from roundoff.words import plural

MAX_FINDINGS = 60
MAX_EVIDENCE = 40
"""At most this many measurements of a finding are listed."""


def verdict_section(view: RunView) -> Section:
    """Show what is wrong, the first finding unfolded, or that nothing was found; and what each rule answered."""
    findings = [finding for finding in view.findings if finding.rule != RULE_FAILED]
    shown = findings[:MAX_FINDINGS]
    left_out = len(findings) - len(shown)
    is_clean = all(finding.severity is Severity.NOTE for finding in view.findings)
    words = "Nothing found so far." if view.run.info.status == "running" else not_found_text(coverage_of(view.run))
    nothing = [tag("p", words, class_="verdict clean")] if is_clean else []
    failed = [tag("p", line, class_="failed") for line in failure_lines(view.answers, view.failures)]
    cards = [_finding(finding, is_first=not place and not is_clean) for place, finding in enumerate(shown)]
    return Section(
        key="verdict",
        title="Verdict",
        body=join_html(*nothing, *cards, *failed, *_answers(view.answers)),
        thinned=[f"{left_out} more findings are in findings.json."] if left_out else [],
    )


def _answers(answers: Sequence[RuleAnswer]) -> list[Html]:
    """List the rules by their answers, folded: what was fine must not look like what could not be checked."""
    groups = [(answer, [each for each in answers if each.answer is answer]) for answer in Answer]
    return [
        tag(
            "details",
            tag("summary", f"{answer}: {plural(len(group), 'check')}"),
            tag("ul", *(tag("li", describe_answer(each)) for each in group)),
            class_="answers",
        )
        for answer, group in groups
        if group
    ]


def _finding(finding: Finding, *, is_first: bool) -> Html:
    head = tag(
        "summary",
        tag("span", str(finding.severity), class_=f"severity {finding.severity}"),
        " ",
        tag("span", finding.title, class_="finding-title"),
        " ",
        tag("span", place_in_words(finding), class_="place"),
    )
    return tag("details", head, _body(finding), class_=f"finding {finding.severity}", open=is_first)


def _body(finding: Finding) -> Html:
    return join_html(
        *(tag("p", line) for line in finding.why.split("\n")),
        *_labelled_line("source", finding.source),
        to_html(code_of(finding)),
        *_labelled_line("tried", tried_text(finding)),
        *_labelled_line("fix", finding.fix),
        *(line for edit in finding.edits for line in _labelled_line("edit", edit_text(edit))),
        *_labelled_line("id", finding.id),
        _jump(finding),
        _evidence(finding),
        *(_related_html(other) for other in finding.related),
    )


def _labelled_line(label: str, words: str | None) -> list[Html]:
    return [tag("p", tag("strong", label), " ", tag("span", words, class_=label))] if words else []


def _jump(finding: Finding) -> Html:
    """Return a button that shows the step of a finding, where the page has it; scripts uncover it then."""
    if finding.step is None:
        return join_html()
    words = f"show the ops of step {finding.step}"
    button = tag("button", words, type="button", data_step=finding.step, data_rank=finding.rank or 0)
    return tag("p", button, class_="jump", hidden=True)


def _evidence(finding: Finding) -> Html:
    evidence = [value for value in finding.evidence if not (isinstance(value, dict) and "code" in value)]
    if not evidence:
        return join_html()
    shown = [tag("li", _measurement(value)) for value in evidence[:MAX_EVIDENCE]]
    left_out = len(evidence) - len(shown)
    more = [tag("li", f"and {left_out} more in findings.json")] if left_out else []
    confidence = f"evidence, confidence {100 * finding.confidence:.0f} %"
    return tag("details", tag("summary", confidence), tag("ul", *shown, *more), class_="evidence")


def _measurement(value: JsonValue) -> str:
    """Write one measurement as names and values.

    >>> _measurement({"tensor": "input0", "absmax": 1712.0})
    'tensor: input0, absmax: 1712'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_value(entry)}" for name, entry in value.items())
    return _value(value)


def _value(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else to_json(value)


def _related_html(finding: Finding) -> Html:
    return tag("p", tag("strong", "also"), f" {place_in_words(finding)}: {finding.title}", class_="related")
