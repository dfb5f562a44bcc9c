"""Exceptions that nobody caught: where they came from, and what kind they are."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from roundoff.diagnose.process.last_moment import CRASH_SIGNALS, PythonFrame, frames_in, users_frame
from roundoff.runs import Anomaly, Finding, JsonValue, Run, Severity

EXCEPTION_CODES = ("exception",)

_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)")
_WORKER_DIED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (is killed by signal: [\w ]+|exited unexpectedly)"
)
_NO_HOST_MEMORY = re.compile(r"DefaultCPUAllocator|not enough memory: you tried to allocate|std::bad_alloc")
_NO_DEVICE_MEMORY = re.compile(
    r"\b(CUDA|HIP|XPU|MPS|NPU|MLU)\b.* out of memory|out of memory\. Tried to allocate", re.I
)
_LOST_ANOTHER = re.compile(r"gloo|nccl|c10d|connection|socket|peer|timed? ?out|broken pipe", re.I)
_DEATHS = (*CRASH_SIGNALS, signal.SIGKILL)
_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")


def uncaught_exceptions(run: Run) -> list[Finding]:
    """Return what ended the training of each rank by an exception; one that the script caught ended nothing."""
    if run.info.status == "finished":
        return []
    last: dict[int, Anomaly] = {rank: anomaly for rank, anomaly in run.anomalies() if anomaly.kind == "exception"}
    found = [_finding(run, rank, anomaly) for rank, anomaly in last.items()]
    return [_seen_from_afar(finding) if _is_about_another(run, finding) else finding for finding in found]


def _finding(run: Run, rank: int, anomaly: Anomaly) -> Finding:
    message = str(anomaly.detail.get("message", ""))
    frames = _frames(anomaly, message)
    mine = users_frame(frames)
    causes = anomaly.detail.get("causes")
    led_to_it = " ".join(map(str, causes)) if isinstance(causes, Sequence) else ""
    title, why, fix = _describe_exception(anomaly.name or "exception", message, led_to_it, frames)
    stack: list[JsonValue] = [f"{frame.source} in {frame.function}" for frame in frames[:12]]
    return Finding(
        rule="exception",
        severity=Severity.ERROR,
        confidence=1.0,
        title=title,
        why=why,
        fix=fix,
        step=anomaly.step,
        rank=rank,
        phase=anomaly.phase,
        site=_site(run, rank, anomaly),
        op=_op(run, rank, anomaly),
        source=None if mine is None else mine.source,
        evidence=({"message": message[:2000]}, {"python_stack": stack}),
    )


def _is_about_another(run: Run, finding: Finding) -> bool:
    """Whether an exception only says that another rank is gone, which died or was stopped."""
    if _LOST_ANOTHER.search(finding.title) is None:
        return False
    others = (run.ending(rank=rank) for rank in run.ranks if rank != finding.rank)
    return any(other is not None and (other.signal in _DEATHS or other.was_stopped) for other in others)


def _seen_from_afar(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.NOTE, fix="see what became of the other rank")


def _describe_exception(name: str, message: str, led_to_it: str, frames: Sequence[PythonFrame]) -> tuple[str, str, str]:
    """Return title, why and fix."""
    frame = users_frame(frames) or next(iter(frames), None)
    where = "where it was raised is not known" if frame is None else f"raised in {frame.function}, {frame.source}"
    if match := _IN_WORKER.search(message):
        return (
            f"worker {match[1]} of the DataLoader raised {_last_line(message)}",
            where,
            "mend the data set or its transforms; with num_workers=0 it is raised where a debugger can see it",
        )
    if died := _WORKER_DIED.search(message):
        match = _WORKER_DIED.search(led_to_it) or died  # only the first to notice knows the signal
        return (
            f"a worker of the DataLoader {match[1]}",
            "it died without a Python exception: out of memory, a full /dev/shm, or a crash in a library",
            "try num_workers=0 to see the crash itself; fewer workers or more shared memory if it was killed",
        )
    asked = f", asked for {found[1]}" if (found := _ASKED_FOR.search(message)) else ""
    if name == "MemoryError" or _NO_HOST_MEMORY.search(message):
        return "the host's memory ran out", f"{_first_line(message) or name}; {where}{asked}", _LESS_MEMORY
    if name == "OutOfMemoryError" or _NO_DEVICE_MEMORY.search(message):
        return "the device's memory ran out", f"{_first_line(message)}; {where}", _LESS_MEMORY
    first = _first_line(message)
    return f"{name}: {first}" if first else name, where, "look at that line with the values of this step"


_LESS_MEMORY = (
    "use less memory: a smaller batch, accumulation of gradients, checkpointing of activations, a narrower format"
)


def _frames(anomaly: Anomaly, message: str) -> list[PythonFrame]:
    """Return the stack, innermost first; of an exception in a worker the worker's, which its message holds."""
    if _IN_WORKER.search(message) and (inner := frames_in(message.splitlines())):
        return inner[::-1]
    traceback = anomaly.detail.get("traceback")
    lines = [str(line) for line in traceback] if isinstance(traceback, Sequence) else []
    return frames_in(lines)


def _site(run: Run, rank: int, anomaly: Anomaly) -> str | None:
    """Return the module that was running: those that an exception ended are never noted to have ended."""
    if "site" in anomaly.detail:
        site = anomaly.detail["site"]
        return site if isinstance(site, str) else None
    flight = run.flight(rank=rank)
    return flight.site if flight is not None and flight.step == anomaly.step else None


def _op(run: Run, rank: int, anomaly: Anomaly) -> str | None:
    """Return the op that raised, where every op was noted: it began and never ended."""
    flight = run.flight(rank=rank)
    return flight.op if flight is not None and flight.step == anomaly.step and not flight.is_op_done else None


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:200]


def _last_line(message: str) -> str:
    return (message.strip().splitlines() or [""])[-1][:200]
