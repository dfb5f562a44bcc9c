"""Deaths of the process: crashes, kills and hangs, told from what it was doing at its last moment."""

from __future__ import annotations

import signal
from dataclasses import replace

from roundoff.diagnose.process.last_moment import CRASH_SIGNALS, LastMoment, last_moment, users_frame
from roundoff.runs import Finding, JsonValue, Run, Severity

PROCESS_CODES = ("native-crash", "killed", "hang", "interrupted")

_MEANING = {
    signal.SIGSEGV: "it touched memory that is not its own",
    signal.SIGBUS: "it touched memory behind which there is nothing: a mapped file that shrank, or a full /dev/shm",
    signal.SIGABRT: "a library gave up: an exception nobody caught, a failed check, or a damaged heap",
    signal.SIGILL: "it met an instruction that this processor does not have",
    signal.SIGFPE: "it divided an integer by zero",
    signal.SIGTRAP: "a library hit one of its own traps",
    signal.SIGSYS: "it made a system call that is forbidden here",
}
_GIB = 2**30


def process_deaths(run: Run) -> list[Finding]:
    """Return how ranks died or hung; those that only waited for one that did are among its related findings."""
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
        return _crash(moment, signal.Signals(ending.signal))
    if ending.seconds_without_progress is not None:
        return _hang(moment, ending.seconds_without_progress)
    if ending.signal == signal.SIGKILL and ending.forwarded_signal is None:
        return _killed(moment)
    if ending.signal is not None or (ending.exit_code and ending.forwarded_signal is not None):
        return _interrupted(moment, ending.signal or ending.forwarded_signal or 0)
    return None


def _crash(moment: LastMoment, number: signal.Signals) -> Finding:
    where = f" in {moment.op}" if moment.op else ""
    when = " while the process was ending, after the training" if moment.ending.was_over else ""
    return _at(
        moment,
        rule="native-crash",
        severity=Severity.WARNING if moment.ending.was_over else Severity.ERROR,
        title=f"the process crashed with {number.name}{where}{when}",
        why="; ".join([_MEANING[number], *_stack_in_words(moment)]),
        fix=_fix_of_crash(moment),
        confidence=1.0,
    )


def _fix_of_crash(moment: LastMoment) -> str:
    place = f"what {moment.source} passes on" if moment.source else "the last op"
    inputs = f"check {place}: shapes, indices, dtypes, memory that was freed or mapped elsewhere"
    if moment.op is None and not moment.ending.has_ops:
        return f"{inputs}\nto learn which op it was:  roundoff run --ops ..."
    return f"{inputs}\nto find the first bad access:  roundoff run --valgrind ..."


def _killed(moment: LastMoment) -> Finding:
    evidence = _memory_evidence(moment)
    held = _held(moment)
    last = f"; the last op that began was {moment.last_op}" if moment.last_op else ""
    if evidence is None:
        return _at(
            moment,
            rule="killed",
            title="the process was killed (SIGKILL)",
            why=f"nothing points to a lack of memory: {held}{last}; somebody sent the signal, a scheduler or a user",
            fix="ask what ran on this machine at that time: time limits, the scheduler's log, other users",
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
    """Say what speaks for a lack of memory, if anything does."""
    ending = moment.ending
    total = ending.memory_bytes
    peak = max(ending.last_rss_bytes or 0, ending.peak_rss_bytes or 0)
    if total is None:
        return None
    is_large = peak > 0.25 * total
    is_short = ending.available_bytes is not None and ending.available_bytes < 0.05 * total
    if ending.num_oom_kills and (is_large or is_short):
        return "the kernel killed for want of memory while it ran"
    if peak > 0.8 * total:
        return "it held nearly all the memory there is"
    if is_large and is_short:
        return "there was hardly any memory left, and it held much of it"
    return None


def _held(moment: LastMoment) -> str:
    ending = moment.ending
    peak = max(ending.last_rss_bytes or 0, ending.peak_rss_bytes or 0)
    told = f"it held {peak / _GIB:.2f} GiB"
    if ending.memory_bytes:
        told += f" of {ending.memory_bytes / _GIB:.1f} GiB"
    if ending.available_bytes is not None:
        told += f", and {ending.available_bytes / _GIB:.1f} GiB were left when last looked at"
    return told


def _hang(moment: LastMoment, seconds: float) -> Finding:
    where = f" in {moment.op}" if moment.op else ""
    if moment.ending.has_gone_on:
        return _at(
            moment,
            rule="hang",
            severity=Severity.NOTE,
            title=f"no progress for {seconds:.0f} s{where}, then it went on",
            why=_stood_where(moment),
            fix="raise --hang-after if that is usual here",
            confidence=0.9,
        )
    stopped = "; it was stopped" if moment.ending.was_stopped else ""
    return _at(
        moment,
        rule="hang",
        title=f"no progress for {seconds:.0f} s{where}{stopped}",
        why=_stood_where(moment),
        fix=_fix_of_hang(moment),
        confidence=0.95,
    )


def _stood_where(moment: LastMoment) -> str:
    told = []
    if moment.collective:
        told.append(f"rank {moment.rank} waits for other ranks in {moment.collective}")
    if moment.waits_for_data:
        told.append("it waits for a worker of the DataLoader")
    return "; ".join([*told, *_stack_in_words(moment)]) or "its stacks could not be taken"


def _stack_in_words(moment: LastMoment) -> list[str]:
    told = []
    if moment.native:
        caller = f", called by {moment.native[1].told}" if len(moment.native) > 1 else ""
        told.append(f"native code was in {moment.native[0].told}{caller}")
    if (frame := users_frame(moment.python) or next(iter(moment.python), None)) is not None:
        told.append(f"Python was in {frame.function}, {frame.source}")
    flight = moment.flight
    if moment.ending.has_ops and flight is not None and flight.op is not None and flight.is_op_done:
        told.append(f"the last op before was {flight.op}")
    return told


def _fix_of_hang(moment: LastMoment) -> str:
    if moment.collective:
        return "see that every rank makes the same collective calls in the same order, and that none has died"
    if moment.waits_for_data:
        return "try num_workers=0; look at what the data set does in a worker: locks, threads, network"
    return f"look at {moment.source or 'the stacks in the run folder'}: what it waits for, or why it does not end"


def _interrupted(moment: LastMoment, number: int) -> Finding:
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
    return _at(
        moment,
        rule="interrupted",
        severity=Severity.NOTE,
        title=f"the training was ended from outside ({name})",
        why="somebody, or a scheduler, asked it to stop",
        fix="nothing, if that was wanted",
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
