"""Uncaught exceptions: where they came from, and of what kind they are."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace

from roundoff.diagnose import needs
from roundoff.diagnose.process.last_moment import CRASH_SIGNALS, PythonFrame, frames_in, users_frame
from roundoff.diagnose.rule import Code, FaultEffect, FindingText, error, rule
from roundoff.runs import Anomaly, ExceptionDetail, Finding, JsonValue, Run, Severity

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
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
_NO_MODULE = re.compile(r"No module named '([^']+)'")
_REQUESTED_SIZE = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")


@rule(
    Code(
        name="exception",
        means="An uncaught exception ended the training. Errors of shape, dtype, device and memory are distinguished, "
        "with the line of your code that they came through.",
        fix="See the finding: it depends on the kind. The step and its batch are saved for `roundoff replay`.",
        follows_from=(
            FaultEffect.NONFINITE,
            "step-on-scaled-gradients",
            "step-on-nonfinite-gradients",
            "loss-nonfinite",
            "unused-parameter",
            "collective-mismatch",
        ),
    ),
    order=1620,
    checks="exceptions that ended the training",
    needs=[needs.some(lambda run: run.info.status != "running", "the training has not ended")],
)
def uncaught_exceptions(run: Run) -> list[Finding]:
    """Find the exception that ended the training of each rank; exceptions that the script caught do not count."""
    if run.info.status == "finished":
        return []
    last: dict[int, Anomaly] = {rank: anomaly for rank, anomaly in run.anomalies() if anomaly.kind == "exception"}
    found = [_finding(run, rank, anomaly) for rank, anomaly in last.items()]
    return [_as_note(finding) if _is_about_another_rank(run, finding) else finding for finding in found]


def _finding(run: Run, rank: int, anomaly: Anomaly) -> Finding:
    detail = anomaly.detail_as(ExceptionDetail)
    frames = _frames(detail)
    mine = users_frame(frames)
    text = _describe_exception(anomaly, detail, frames)
    stack: list[JsonValue] = [f"{frame.source} in {frame.function}" for frame in frames[:12]]
    return error(
        rule="exception",
        confidence=1.0,
        title=text.title,
        why=text.why,
        fix=text.fix,
        step=anomaly.step if detail.when == "in" else None,
        rank=rank,
        phase=anomaly.phase,
        site=detail.site,
        op=_op(run, rank, anomaly),
        source=None if mine is None else mine.source,
        evidence=({"message": detail.message[:2000]}, {"python_stack": stack}),
    )


def _is_about_another_rank(run: Run, finding: Finding) -> bool:
    """Say whether an exception only reports that another rank, which died or was stopped, is gone."""
    if _LOST_ANOTHER.search(finding.title) is None:
        return False
    others = (run.ending(rank=rank) for rank in run.ranks if rank != finding.rank)
    return any(other is not None and (other.signal in _DEATHS or other.was_stopped) for other in others)


def _as_note(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.NOTE, fix="see what happened to the other rank")


def _describe_exception(anomaly: Anomaly, detail: ExceptionDetail, frames: Sequence[PythonFrame]) -> FindingText:
    name, message, led_to_it = anomaly.name or "exception", detail.message, " ".join(detail.causes)
    frame = users_frame(frames) or next(iter(frames), None)
    when = {"before": "before the first step ", "in": "", "after": f"after step {anomaly.step}, the last one, "}
    where = f"raised {when[detail.when]}in {frame.function}, {frame.source}" if frame else "its traceback is not known"
    if match := _IN_WORKER.search(message):
        return FindingText(
            title=f"DataLoader worker {match[1]} raised {(message.strip().splitlines() or [''])[-1][:200]}",
            why=where,
            fix="fix the dataset or its transforms; with num_workers=0 the exception is raised in the main process, "
            "where a debugger sees it",
        )
    if died := _WORKER_DIED.search(message):
        match = _WORKER_DIED.search(led_to_it) or died  # only the first to notice knows the signal
        return FindingText(
            title=f"a DataLoader worker {match[1]}",
            why="it died without a Python exception: out of memory, a full /dev/shm, or a crash in a library",
            fix="try num_workers=0 to see the crash itself; use fewer workers or more shared memory if it was killed",
        )
    requested = f", requested {found[1]}" if (found := _REQUESTED_SIZE.search(message)) else ""
    if name == "MemoryError" or _NO_HOST_MEMORY.search(message):
        why = f"{_first_line(message) or name}; {where}{requested}"
        return FindingText(title="out of host memory", why=why, fix=_LESS_MEMORY)
    if name == "OutOfMemoryError" or _NO_DEVICE_MEMORY.search(message):
        return FindingText(title="out of device memory", why=f"{_first_line(message)}; {where}", fix=_LESS_MEMORY)
    first = _first_line(message)
    title = f"{name}: {first}" if first else name
    if name in _SYNTAX_ERRORS and frame is not None and "(<" not in message:  # not in a text that was evaluated
        return FindingText(
            title=title, why=f"Python cannot compile {frame.source}, so nothing of it has run", fix="correct that line"
        )
    if match := _NO_MODULE.search(message if name == "ModuleNotFoundError" else ""):
        return FindingText(
            title=title,
            why=where,
            fix=f"install the package that provides '{match[1]}' into the environment of this Python, or add the "
            "folder that contains it to PYTHONPATH",
        )
    if name == "ImportError":
        return FindingText(
            title=title, why=where, fix="correct the name, or install a version of the package that has it"
        )
    values = " with the values of this step" if detail.when == "in" else ""
    return FindingText(title=title, why=where, fix=f"look at that line{values}")


_LESS_MEMORY = "use less memory: a smaller batch, gradient accumulation, activation checkpointing, a narrower format"


def _frames(detail: ExceptionDetail) -> list[PythonFrame]:
    """Return the stack, innermost first; for an exception in a DataLoader worker, the worker's, from its message."""
    if _IN_WORKER.search(detail.message) and (inner := frames_in(detail.message.splitlines())):
        return inner[::-1]
    return frames_in(detail.traceback)


def _op(run: Run, rank: int, anomaly: Anomaly) -> str | None:
    """Return the op that raised, if every op was recorded: it started and never ended."""
    flight = run.flight(rank=rank)
    return flight.op if flight is not None and flight.step == anomaly.step and not flight.is_op_done else None


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:200]
