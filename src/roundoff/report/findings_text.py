"""Findings as plain text: at most one screen, the verdict first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from roundoff.report.sparkline import curve_lines
from roundoff.runs import RULE_FAILED, Answer, Failure, Finding, RuleAnswer, Severity, failures_line
from roundoff.words import plural, wrap

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.runs import Run


WIDTH = 100
MAX_OTHERS = 6
"""So many findings after the first get a line of their own."""
MAX_RELATED = 3


def verdict_text(
    run: Run, diagnosis: Diagnosis, *, watched: str | None = None, width: int = WIDTH, draws: bool = True
) -> str:
    """Lay out a diagnosis: the findings, what was saved, what to type next, and the curves of a run that broke.

    Args:
        run: what was diagnosed.
        diagnosis: its result.
        watched: how long it was watched, as `watched_text` writes it.
        width: of the screen.
        draws: whether the output can show the characters of curves.
    """
    curves = curve_lines(run.metrics(), width=width, indent="  ") if draws and not diagnosis.is_clean else []
    return findings_text(
        diagnosis.findings,
        saved=saved_line(run, diagnosis),
        next_commands=next_commands(run, diagnosis),
        watched="\n".join([*curves, *([watched] if watched else [])]) or None,
        failed=failure_lines(diagnosis.answers, run.failures()),
        width=width,
    )


def findings_text(
    findings: Sequence[Finding],
    *,
    saved: str | None = None,
    next_commands: Sequence[str] = (),
    watched: str | None = None,
    failed: Sequence[str] = (),
    width: int = WIDTH,
) -> str:
    """Lay out the first finding in full and the others in one line each; say so plainly when there are none.

    Args:
        findings: the verdict first.
        saved: what was kept of the bad step, and the command that opens it.
        next_commands: what to type next.
        watched: the last line, as `watched_text` writes it.
        failed: lines about checks that failed, as `failure_lines` writes them.
        width: of the screen.
    """
    problems = [finding for finding in findings if finding.severity is not Severity.NOTE]
    notes = [f for f in findings if f.severity is Severity.NOTE and f.rule != RULE_FAILED]
    if not problems:
        return "\n".join([_nothing_found(watched, is_complete=not failed), *_others(notes, width), *failed])
    lines = _finding_lines(problems[0], width)
    if saved:
        lines.append(f"  saved  {saved}")
    lines += _next_lines(next_commands, width)
    lines += [*_others([*problems[1:], *notes], width), *failed]
    return "\n".join([*lines, watched] if watched else lines)


def saved_line(run: Run, diagnosis: Diagnosis) -> str | None:
    """Say what was kept of the step that the verdict is about."""
    step = diagnosis.findings[0].step if diagnosis.findings else None
    if step is None or step not in run.replayed_steps:
        return None
    return f"the batch and the state before the step:  roundoff replay {run.path}"


def next_commands(run: Run, diagnosis: Diagnosis) -> list[str]:
    """Return the command that makes a page of the run, and the one that shows the events around the verdict, if any."""
    if diagnosis.is_clean:
        return []
    report = f"roundoff report {run.path}"
    verdict = diagnosis.findings[0]
    if verdict.step is None or verdict.site is None:
        return [report]
    replay = run.path / "replay" / f"step{verdict.step}"
    folder = replay if verdict.step in run.replayed_steps else run.path
    has_events = verdict.step in run.replayed_steps or verdict.step in run.steps
    show = f"roundoff runs show {folder} --step {verdict.step} --site '{verdict.site}'"
    return [report, show] if has_events else [report]


def watched_text(*, num_steps: int, seconds: float, cost: float | None = None) -> str:
    """Say how long a training was watched and what that cost, as a share of its time.

    >>> watched_text(num_steps=1204, seconds=372.4, cost=0.0137)
    'watched 1204 steps in 6 min 12 s; cost 1.4 %'
    >>> watched_text(num_steps=1, seconds=0.25)
    'watched 1 step in 0.2 s'
    """
    steps = plural(num_steps, "step")
    text = f"watched {steps} in {_duration(seconds)}"
    return text if cost is None else f"{text}; cost {100 * cost:.1f} %"


def answers_text(answers: Sequence[RuleAnswer]) -> str:
    """List what every rule answered: those that found something first, then fine, nothing to look at and failed."""
    ordered = sorted(answers, key=lambda answer: list(Answer).index(answer.answer))
    return "\n".join(f"  {answer.answer:<20}{describe_answer(answer)}" for answer in ordered)


def describe_answer(answer: RuleAnswer) -> str:
    """Return what a rule looked at, and the reason for an answer that has one."""
    return answer.checks if answer.reason is None else f"{answer.checks}: {answer.reason}"


def failure_lines(answers: Sequence[RuleAnswer], failures: Sequence[Failure]) -> list[str]:
    """Return at most two lines: checks that failed because of a bug in roundoff, and rules that could not read."""
    bugs = {failure.name for failure in failures if failure.check == "rule"}
    failed = [answer for answer in answers if answer.answer is Answer.FAILED and not bugs.intersection(answer.codes)]
    unreadable = f"{plural(len(failed), 'check')} could not read the run: {failed[0].reason}" if failed else None
    return [line for line in (failures_line(failures), unreadable) if line is not None]


def place_in_words(finding: Finding) -> str:
    """Say which rule found it, where, and when, as the first line of a finding does."""
    place = " / ".join(part for part in (finding.site, finding.op, finding.parameter) if part)
    when = [f"step {finding.step}"] if finding.step is not None else []
    when += [finding.phase] if finding.phase else []
    when += [f"rank {finding.rank}"] if finding.rank else []
    return "   ".join(part for part in (finding.rule, place, ", ".join(when)) if part)


def _nothing_found(watched: str | None, *, is_complete: bool) -> str:
    text = "Nothing found" if is_complete else "Nothing found, but some checks failed"
    return f"{text}; {watched}" if watched else f"{text}."


def _finding_lines(finding: Finding, width: int) -> list[str]:
    first, *further = finding.why.split("\n")
    lines = [
        _headline(finding, width),
        *wrap(_end_sentence(f"{_begin_sentence(finding)}: {first}"), first="  ", rest="  ", width=width),
    ]
    for paragraph in further:
        lines += wrap(_end_sentence(paragraph), first="  ", rest="  ", width=width)
    fixes = finding.fix.split("\n")
    for place, fix in enumerate(fixes):
        text = _end_sentence(fix) if place == len(fixes) - 1 else fix
        lines += wrap(text, first="  fix    " if not place else "         ", rest="         ", width=width)
    for related in finding.related[:MAX_RELATED]:
        lines += wrap(
            _end_sentence(f"{related.rule}: {related.title}"), first="  also   ", rest="         ", width=width
        )
    return lines


def _next_lines(commands: Sequence[str], width: int) -> list[str]:
    """Return the commands side by side, or one below the other where they are too long for that."""
    together = f"  next   {'     '.join(commands)}"
    if len(together) <= width or len(commands) == 1:
        return [together] if commands else []
    return [f"{'         ' if place else '  next   '}{command}" for place, command in enumerate(commands)]


def _others(findings: Sequence[Finding], width: int) -> list[str]:
    lines = [_one_line(finding, width) for finding in findings[:MAX_OTHERS]]
    more = len(findings) - MAX_OTHERS
    return [*lines, f"{more} more in findings.json"] if more > 0 else lines


def _one_line(finding: Finding, width: int) -> str:
    mark = "note: " if finding.severity is Severity.NOTE else ""
    text = mark + "   ".join(part for part in (place_in_words(finding), finding.title) if part)
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def _headline(finding: Finding, width: int) -> str:
    left = place_in_words(finding)
    if not finding.source:
        return left
    return f"{left}{' ' * max(3, width - len(left) - len(finding.source))}{finding.source}"


def _end_sentence(text: str) -> str:
    """End a sentence, unless it ends in something to type."""
    return text if text.endswith((".", ")", "!", "?")) or ":  " in text else f"{text}."


def _begin_sentence(finding: Finding) -> str:
    """Return the title as the beginning of a sentence; the name of a site keeps its letters."""
    is_name = finding.site is not None and finding.title.startswith(finding.site)
    return finding.title if is_name else _capitalize(finding.title)


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:] if not text.startswith(("fp", "bf", "e4", "e5")) else text


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
