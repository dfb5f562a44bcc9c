"""Crashes, kills and hangs of the process, and what it was doing when they happened."""

from __future__ import annotations

import signal
from dataclasses import replace

from roundoff.diagnose import needs
from roundoff.diagnose.process.last_moment import CRASH_SIGNALS, LastMoment, last_moment, users_frame
from roundoff.diagnose.rule import Code, rule
from roundoff.runs import Finding, JsonValue, Run, Severity
from roundoff.words import size_text

_SIGNAL_MEANING = {
    signal.SIGSEGV: "it accessed memory that does not belong to it",
    signal.SIGBUS: "it accessed mapped memory that no longer exists: a mapped file shrank, or /dev/shm is full",
    signal.SIGABRT: "a library aborted: an uncaught C++ exception, a failed check, or a corrupted heap",
    signal.SIGILL: "it executed an instruction that this processor does not support",
    signal.SIGFPE: "it divided an integer by zero",
    signal.SIGTRAP: "a library hit one of its own traps",
    signal.SIGSYS: "it made a forbidden system call",
}


@rule(
    Code(
        name="native-crash",
        means="Native code ended the process with a signal such as SIGSEGV. The finding says what was running, with "
        "the Python stack and, if gdb is installed, the native stack.",
        detected="The parent process sees the signal that ended the child. What the child was doing is read from a "
        "memory-mapped file that survives it.",
        fix="Check what the named line passes on: shapes, indices, dtypes, freed memory. `--ops` names the exact op, "
        "`--valgrind` the first invalid access.",
    ),
    Code(
        name="killed",
        means="The process received SIGKILL. The finding blames a lack of memory only if there is evidence for it.",
        detected="The child received SIGKILL. Its memory use, the memory that was left and the kernel's count of "
        "out-of-memory kills show whether memory ran out.",
        fix="Use less memory (a smaller batch, fewer workers, activation checkpointing), or find out who sent the "
        "signal.",
    ),
    Code(
        name="hang",
        means="There was no progress for the time set by `--hang-after`. If several ranks hang, the finding names the "
        "one that the others wait for.",
        detected="The process made no progress for the time set by `--hang-after`; then its stacks were taken.",
        fix="Look at the stack: an op that never returns, a DataLoader worker, a collective that one rank missed.",
        follows_from=("collective-mismatch",),
    ),
    Code(
        name="interrupted",
        means="The training was stopped from outside, by Ctrl-C or a scheduler.",
        detected="The child was ended by a signal that requests a stop, such as SIGINT or SIGTERM.",
        fix="Nothing, if that was intended.",
    ),
    order=110,
    checks="crashes, kills and hangs of the process",
    needs=[
        needs.some(
            lambda run: run.info.status != "running" or any(run.ending(rank=rank) for rank in run.ranks),
            "the process has not ended, or nothing recorded how it ended",
        )
    ],
)
def process_deaths(run: Run) -> list[Finding]:
    """Find ranks that died or hung; ranks that only waited for one of those are related findings of it."""
    moments = [moment for rank in run.ranks if (moment := last_moment(run, rank)) is not None]
    found = [(moment, finding) for moment in moments if (finding := _finding(moment)) is not None]
    errors = [(moment, finding) for moment, finding in found if finding.severity is Severity.ERROR]
    if not errors:
        return [finding for _, finding in found]
    culprits = [finding for moment, finding in errors if finding.rule != "hang" or not moment.may_wait_for_others]
    waiting = [finding for _, finding in errors if not any(finding is culprit for culprit in culprits)]
    if not culprits:
        culprits, waiting = waiting[:1], waiting[1:]
    return [replace(culprits[0], related=tuple(waiting)), *culprits[1:]]


def _finding(moment: LastMoment) -> Finding | None:
    ending = moment.ending
    if ending.signal in CRASH_SIGNALS:
        number = signal.Signals(ending.signal)
        where = f" in {moment.op}" if moment.op else ""
        when = " at process exit, after the training had ended" if moment.ending.was_over else ""
        return _at(
            moment,
            rule="native-crash",
            severity=Severity.WARNING if moment.ending.was_over else Severity.ERROR,
            title=f"the process crashed with {number.name}{where}{when}",
            why="; ".join([_SIGNAL_MEANING[number], *_describe_stacks(moment)]),
            fix=_crash_fix(moment),
            confidence=1.0,
        )
    if ending.seconds_without_progress is not None:
        return _hang(moment, ending.seconds_without_progress)
    if ending.signal == signal.SIGKILL and ending.forwarded_signal is None:
        return _kill_finding(moment)
    if ending.signal is not None or (ending.exit_code and ending.forwarded_signal is not None):
        return _interrupt_finding(moment, ending.signal or ending.forwarded_signal or 0)
    return None


def _crash_fix(moment: LastMoment) -> str:
    place = f"what {moment.source} passes on" if moment.source else "the last op"
    inputs = f"check {place}: shapes, indices, dtypes, freed or remapped memory"
    if moment.op is None and not moment.ending.has_ops:
        return f"{inputs}\nto find out which op it was:  roundoff run --ops ..."
    return f"{inputs}\nto find the first invalid access:  roundoff run --valgrind ..."


def _kill_finding(moment: LastMoment) -> Finding:
    evidence = _memory_evidence(moment)
    held = _describe_memory(moment)
    last = f"; the last op that started was {moment.last_op}" if moment.last_op else ""
    if evidence is None:
        return _at(
            moment,
            rule="killed",
            title="the process was killed (SIGKILL)",
            why=f"nothing points to a lack of memory: {held}{last}; a scheduler or a user sent the signal",
            fix="check what happened on this machine at that time: time limits, the scheduler's log, other users",
            confidence=0.9,
        )
    return _at(
        moment,
        rule="killed",
        title="the process was killed (SIGKILL), probably out of memory",
        why=f"{evidence}: {held}{last}",
        fix="use less memory: a smaller batch, fewer DataLoader workers, gradient checkpointing; or raise the limit",
        confidence=0.95 if moment.ending.num_oom_kills else 0.8,
    )


def _memory_evidence(moment: LastMoment) -> str | None:
    """Return the evidence for a lack of memory, or None."""
    ending = moment.ending
    total = ending.memory_bytes
    peak = max(ending.last_rss_bytes or 0, ending.peak_rss_bytes or 0)
    if total is None:
        return None
    is_large = peak > 0.25 * total
    is_short = ending.available_bytes is not None and ending.available_bytes < 0.05 * total
    if ending.num_oom_kills and (is_large or is_short):
        return "the kernel killed processes for lack of memory while it ran"
    if peak > 0.8 * total:
        return "it used nearly all of the memory"
    if is_large and is_short:
        return "hardly any memory was left, and it used much of it"
    return None


def _describe_memory(moment: LastMoment) -> str:
    ending = moment.ending
    peak = max(ending.last_rss_bytes or 0, ending.peak_rss_bytes or 0)
    text = f"it used {size_text(peak)}"
    if ending.memory_bytes:
        text += f" of {size_text(ending.memory_bytes)}"
    if ending.available_bytes is not None:
        text += f", and {size_text(ending.available_bytes)} were free at the last measurement"
    return text


def _hang(moment: LastMoment, seconds: float) -> Finding:
    where = f" in {moment.op}" if moment.op else ""
    if moment.ending.has_gone_on:
        return _at(
            moment,
            rule="hang",
            severity=Severity.NOTE,
            title=f"no progress for {seconds:.0f} s{where}, then it continued",
            why=_describe_hang(moment),
            fix="raise --hang-after if such pauses are normal here",
            confidence=0.9,
        )
    stopped = "; it was stopped" if moment.ending.was_stopped else ""
    return _at(
        moment,
        rule="hang",
        title=f"no progress for {seconds:.0f} s{where}{stopped}",
        why=_describe_hang(moment),
        fix=_hang_fix(moment),
        confidence=0.95,
    )


def _describe_hang(moment: LastMoment) -> str:
    parts = []
    if moment.collective:
        parts.append(f"rank {moment.rank} waits for other ranks in {moment.collective}")
    if moment.waits_for_data:
        parts.append("it waits for a DataLoader worker")
    return "; ".join([*parts, *_describe_stacks(moment)]) or "its stacks could not be read"


def _describe_stacks(moment: LastMoment) -> list[str]:
    parts = []
    if moment.native:
        caller = f", called by {moment.native[1].text}" if len(moment.native) > 1 else ""
        parts.append(f"native code was in {moment.native[0].text}{caller}")
    if (frame := users_frame(moment.python) or next(iter(moment.python), None)) is not None:
        parts.append(f"Python was in {frame.function}, {frame.source}")
    flight = moment.flight
    if moment.ending.has_ops and flight is not None and flight.op is not None and flight.is_op_done:
        parts.append(f"the last op before was {flight.op}")
    return parts


def _hang_fix(moment: LastMoment) -> str:
    if moment.collective:
        return "check that every rank makes the same collective calls in the same order, and that none has died"
    if moment.waits_for_data:
        return "try num_workers=0; check what the dataset does in a worker: locks, threads, network"
    return f"look at {moment.source or 'the stacks in the run folder'}: what does it wait for, or why does it not end?"


def _interrupt_finding(moment: LastMoment, number: int) -> Finding:
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
    return _at(
        moment,
        rule="interrupted",
        severity=Severity.NOTE,
        title=f"the training was stopped from outside ({name})",
        why="a user or a scheduler sent the signal",
        fix="nothing, if that was intended",
        confidence=0.9,
    )


def _at(
    moment: LastMoment, *, rule: str, title: str, why: str, fix: str, confidence: float,
    severity: Severity = Severity.ERROR,
) -> Finding:  # fmt: skip
    ending = moment.ending
    memory: dict[str, JsonValue] = {
        "rss_bytes": ending.last_rss_bytes, "peak_rss_bytes": ending.peak_rss_bytes,
        "available_bytes": ending.available_bytes, "memory_bytes": ending.memory_bytes,
        "num_oom_kills": ending.num_oom_kills,
    }  # fmt: skip
    return Finding(
        rule=rule,
        severity=severity,
        confidence=confidence,
        title=title,
        why=why,
        fix=fix,
        step=moment.step,
        rank=moment.rank,
        phase=moment.phase,
        site=moment.site,
        op=moment.op or (moment.last_op if rule == "killed" else None),
        source=moment.source,
        evidence=(*moment.evidence, {"memory": memory}) if rule == "killed" else moment.evidence,
    )
