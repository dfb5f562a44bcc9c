"""Findings as plain text: at most one screen, the verdict first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from roundoff.console import PLAIN, Paint, Style, can_draw, columns
from roundoff.diagnose.quoted_code import find_source
from roundoff.report.loss_curve import curve_lines
from roundoff.report.parts import WIDTH, CodeBlock, Facts, Note, Part, Sentence, to_text
from roundoff.runs import RULE_FAILED, Answer, Edit, Failure, Finding, RuleAnswer, Severity, failures_line
from roundoff.words import join_words, plural

if TYPE_CHECKING:
    from roundoff.diagnose import Diagnosis
    from roundoff.diagnose.diagnosis import Coverage
    from roundoff.runs import Run

MAX_OTHERS = 6
"""At most this many findings after the first get a line of their own."""
MAX_RELATED = 3
MAX_EDITS = 4
_STYLES: dict[Severity, Style] = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "marked"}
_TRIAL = {"tried", "steps", "is_good", "effect"}


def verdict_text(
    run: Run,
    diagnosis: Diagnosis,
    *,
    watched: str | None = None,
    width: int = WIDTH,
    draws: bool = True,
    paint: Paint = PLAIN,
) -> str:
    """Lay out a diagnosis: the findings, what was saved, what to type next, and the curves of a run that broke.

    `draws` says whether the output can show the characters of curves; `watched` is a line of `watched_text`. The text
    holds no control characters except those that `paint` makes.
    """
    curves = curve_lines(run.metrics(), width=width, indent="  ") if draws and not diagnosis.is_clean else []
    return findings_text(
        diagnosis.findings,
        saved=saved_line(run, diagnosis),
        next_commands=next_commands(run, diagnosis),
        watched="\n".join([*curves, *([watched] if watched else [])]) or None,
        failed=failure_lines(diagnosis.answers, run.failures()),
        coverage=diagnosis.coverage,
        width=width,
        paint=paint,
        file_of=partial(find_source, run),
    )


def verdict_screen(run: Run, diagnosis: Diagnosis, stream: TextIO, *, watched: str | None = None) -> str:
    """Lay out a diagnosis as a stream can show it: as wide as it is, and with colours and links if it is a terminal."""
    return verdict_text(
        run, diagnosis, watched=watched, width=columns(), draws=can_draw(stream), paint=Paint.of(stream)
    )


def findings_text(
    findings: Sequence[Finding],
    *,
    saved: str | None = None,
    next_commands: Sequence[str] = (),
    watched: str | None = None,
    failed: Sequence[str] = (),
    coverage: Coverage | None = None,
    width: int = WIDTH,
    paint: Paint = PLAIN,
    file_of: Callable[[str], Path | None] = lambda source: None,
) -> str:
    """Lay out the first finding in full and the others in one line each; say so plainly when there are none.

    The verdict is the first of the findings. `saved` names what was kept of the bad step and the command that opens it,
    `failed` holds lines of `failure_lines`, and `watched` is the last line, of `watched_text`. If `coverage` says that
    not everything was watched, a line says so after it. `file_of` returns the file of a source line, to link to it.
    """
    problems = [finding for finding in findings if finding.severity is not Severity.NOTE]
    notes = [f for f in findings if f.severity is Severity.NOTE and f.rule != RULE_FAILED]
    if not problems and (coverage is None or coverage.watched == "complete" or _is_unreadable(coverage)):
        nothing = paint(_nothing_found(watched, is_complete=not failed), "warning" if failed else "good")
        return "\n".join([nothing, *_others(notes, width, paint), *map(paint, failed)])
    if not problems and coverage is not None:
        lines = [*([paint(watched)] if watched else []), *_others(notes, width, paint), *map(paint, failed)]
        return "\n".join([*lines, paint(not_found_text(coverage), "warning")])
    file = file_of(problems[0].source) if problems[0].source is not None and paint.links else None
    parts = [*finding_parts(problems[0], file=file), Facts([("saved", saved)] if saved else [], overflow="keep")]
    parts.append(Facts(_next_facts(next_commands, width), overflow="keep"))
    others = _others([*problems[1:], *notes], width, paint)
    lines = [to_text(parts, width=width, paint=paint), *others, *map(paint, failed)]
    lines += [paint(watched, "faint")] if watched else []
    if coverage is not None and coverage.watched == "partial":
        lines.append(paint(f"Not everything was watched: {'; '.join(coverage.reasons)}.", "warning"))
    return "\n".join(lines)


def not_found_text(coverage: Coverage) -> str:
    """Say that nothing was found, and in how much of the training.

    >>> from roundoff.diagnose.diagnosis import Coverage
    >>> not_found_text(Coverage(watched="complete", num_steps=3))
    'Nothing found.'
    >>> not_found_text(Coverage(watched="partial", num_steps=3, reasons=("watching stopped at step 3",)))
    'Nothing found in the 3 steps that were watched; watching stopped at step 3.'
    >>> not_found_text(Coverage(watched="nothing", num_steps=0, reasons=("no training step was seen",)))
    'Nothing was watched: no training step was seen.'
    """
    if coverage.watched == "complete":
        return "Nothing found."
    reasons = "; ".join(coverage.reasons)
    if coverage.watched == "nothing":
        return f"Nothing was watched: {reasons}."
    if not coverage.num_steps:
        return f"Nothing found, but {reasons}."
    was = "was" if coverage.num_steps == 1 else "were"
    return f"Nothing found in the {plural(coverage.num_steps, 'step')} that {was} watched; {reasons}."


def finding_parts(finding: Finding, *, file: Path | None = None) -> list[Part]:
    """Return a finding in full: where, what and why, how to fix it, and what else follows from it.

    `file` is where the file of its source line is, if that is known.
    """
    first, *further = f"{_begin_sentence(finding)}: {finding.why}".split("\n")
    tried = tried_text(finding)
    related = [("also", _end_sentence(f"{each.rule}: {each.title}")) for each in finding.related[:MAX_RELATED]]
    edits = finding.edits if edits_say_what_to_write(finding) else ()
    steps = [("edit", edit_text(edit)) for edit in edits[:MAX_EDITS]]
    return [
        Sentence(place_in_words(finding), source=finding.source, style=_STYLES[finding.severity], file=file),
        *code_of(finding),
        *(Note(_end_sentence(paragraph)) for paragraph in (first, *further) if paragraph.strip()),
        Facts([*([("tried", tried)] if tried else []), ("fix", _end_sentence(finding.fix)), *steps, *related]),
    ]


def edits_say_what_to_write(finding: Finding) -> bool:
    """Return whether a reader can apply the edits of a finding without thinking of something to write."""
    return bool(finding.edits) and all(edit.action != "change" for edit in finding.edits)


def edit_text(edit: Edit) -> str:
    """Describe an edit on one line.

    >>> edit_text(Edit(file="train.py", line=12, action="replace", old="lr=30", new="lr=0.3"))
    "train.py:12: replace 'lr=30' by 'lr=0.3'"
    >>> edit_text(Edit(file="train.py", line=12, action="insert", new="    optimizer.step()"))
    "train.py:12: insert before it 'optimizer.step()'"
    """
    place = f"{edit.file}:{edit.line}"
    if edit.action == "insert":
        return f"{place}: insert before it {(edit.new or '').strip()!r}"
    by = f" by {edit.new!r}" if edit.action == "replace" else ""
    return f"{place}: {edit.action} {edit.old!r}{by}"


def finding_text(finding: Finding) -> str:
    """Return a finding in full, as a console shows it."""
    return to_text(finding_parts(finding))


def message_of(finding: Finding) -> str:
    """Return a finding as a few sentences, for where another tool shows its place.

    >>> what = dict(title="fp16 bmm overflowed", why="its product exceeds 65504", fix="keep attn in fp32")
    >>> message_of(Finding(rule="overflow", severity="error", confidence=1, site="attn", step=3, **what))
    'fp16 bmm overflowed: its product exceeds 65504. Place: attn, step 3. Fix: keep attn in fp32.'
    """
    place = ", ".join(place_in_words(finding).split("   ")[1:])
    said = [
        f"{_begin_sentence(finding)}: {finding.why}",
        *([f"Place: {place}"] if place else []),
        f"Fix: {finding.fix}",
    ]
    return " ".join(map(_end_sentence, said))


def code_of(finding: Finding) -> list[CodeBlock]:
    """Return the lines of code that a finding quotes, if it does."""
    for item in finding.evidence:
        if isinstance(item, dict) and isinstance(lines := item.get("code"), list) and lines:
            number = (finding.source or "").rpartition(":")[2]
            first = item.get("from_line")
            if number.isdecimal() and isinstance(first, int):
                return [CodeBlock(lines=[str(line) for line in lines], from_line=first, marked=int(number))]
    return []


def tried_text(finding: Finding) -> str | None:
    """Say what was changed in replays of a bad step, and which of it helped; None if nothing was tried.

    >>> replay = {"steps": [20, 30], "effect": "losses and weights stay finite"}
    >>> tried = [{"tried": "attn in fp32", "is_good": True}, {"tried": "clipping", "is_good": False}]
    >>> evidence = tuple(item | replay for item in tried)
    >>> tried_text(Finding(rule="", severity="error", confidence=1.0, title="", why="", fix="", evidence=evidence))
    'in a replay of steps 20 to 30 losses and weights stay finite with attn in fp32, and not with clipping.'
    >>> tried_text(Finding(rule="", severity="error", confidence=1.0, title="", why="", fix="", evidence=evidence[1:]))
    'in a replay of steps 20 to 30 nothing helped that was tried: clipping.'
    """
    trials = [item for item in finding.evidence if isinstance(item, dict) and item.keys() >= _TRIAL]
    if not trials:
        return None
    first, last = cast("list[int]", trials[0]["steps"])[:2]
    replay = f"in a replay of {f'step {last}' if first == last else f'steps {first} to {last}'}"
    helped, in_vain = ([str(item["tried"]) for item in trials if item["is_good"] is good] for good in (True, False))
    if not helped:
        return f"{replay} nothing helped that was tried: {join_words(in_vain)}."
    rest = f", and not with {' or '.join(in_vain)}" if in_vain else ""
    return f"{replay} {trials[0]['effect']} with {' or '.join(helped)}{rest}."


def saved_line(run: Run, diagnosis: Diagnosis) -> str | None:
    """Say what was kept of the step that the verdict is about."""
    step = diagnosis.findings[0].step if diagnosis.findings else None
    if step is None or step not in run.replayed_steps or not run.info.stores_data:
        return None
    return f"the batch and the state before the step:  roundoff replay {run.path}"


def next_commands(run: Run, diagnosis: Diagnosis) -> list[str]:
    """Return the commands that make a page of the run, show the events around the verdict, if any, and explain it."""
    if diagnosis.is_clean:
        return []
    verdict = diagnosis.findings[0]
    report = f"roundoff report {run.path}"
    explain = f"roundoff diagnose {run.path} --finding {verdict.id}"
    if verdict.step is None or verdict.site is None:
        return [report, explain]
    replay = run.path / "replay" / f"step{verdict.step}"
    folder = replay if verdict.step in run.replayed_steps else run.path
    has_events = verdict.step in run.replayed_steps or verdict.step in run.steps
    show = f"roundoff runs show {folder} --step {verdict.step} --site '{verdict.site}'"
    return [report, show, explain] if has_events else [report, explain]


def watched_text(*, num_steps: int, seconds: float, parts: Mapping[str, float] | None = None) -> str:
    """Say how long a training was watched, and what roundoff added to that, all included, and for what.

    The percentage compares with the rest of the time, which the training would have taken without roundoff.

    >>> watched_text(num_steps=1204, seconds=372.4, parts={"first steps": 5.9, "the rest": 3.2})
    'watched 1204 steps in 6 min 12 s; roundoff added 9.1 s (2.5 %): first steps 5.9 s, the rest 3.2 s'
    >>> watched_text(num_steps=1, seconds=0.25)
    'watched 1 step in 0.2 s'
    """
    text = f"watched {plural(num_steps, 'step')} in {_duration(seconds)}"
    if parts is None:
        return text
    total = sum(parts.values())
    share = 100 * total / (seconds - total) if seconds > total else 100.0
    most = ", ".join(f"{name} {_duration(part)}" for name, part in parts.items() if part >= 0.05)
    return f"{text}; roundoff added {_duration(total)} ({share:.1f} %)" + (f": {most}" if most else "")


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


def _is_unreadable(coverage: Coverage) -> bool:
    """Say whether it is not known how much was watched; the checks that failed say why."""
    return coverage.watched == "partial" and not coverage.num_steps


def _nothing_found(watched: str | None, *, is_complete: bool) -> str:
    text = "Nothing found" if is_complete else "Nothing found, but some checks failed"
    return f"{text}; {watched}" if watched else f"{text}."


def _next_facts(commands: Sequence[str], width: int) -> list[tuple[str, str]]:
    """Return the commands on one line, or on one line each where they are too long for that."""
    together = "     ".join(commands)
    if len(together) + 9 <= width:
        return [("next", together)] if commands else []
    return [("" if place else "next", command) for place, command in enumerate(commands)]


def _others(findings: Sequence[Finding], width: int, paint: Paint) -> list[str]:
    lines = [paint(_one_line(finding, width), _STYLES[finding.severity]) for finding in findings[:MAX_OTHERS]]
    more = len(findings) - MAX_OTHERS
    return [*lines, f"{more} more in findings.json"] if more > 0 else lines


def _one_line(finding: Finding, width: int) -> str:
    mark = "note: " if finding.severity is Severity.NOTE else ""
    text = mark + "   ".join(part for part in (place_in_words(finding), finding.title) if part)
    return text if len(text) <= width else f"{text[: width - 4].rstrip()} ..."


def _end_sentence(text: str) -> str:
    """End a sentence, unless it ends in something to type."""
    last = text.rpartition("\n")[2]
    return text if last.endswith((".", ")", "!", "?")) or ":  " in last else f"{text}."


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
