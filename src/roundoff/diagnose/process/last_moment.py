"""What a process was doing when it died or hung, from its flight recorder and the stacks of faulthandler and gdb."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roundoff.record.source_lines import shown_path
from roundoff.runs import Ending, Flight, JsonValue, Run

_PYTHON_FRAME = re.compile(r'^ +File "(.+)", line (\d+),? in (.+)$')
_NATIVE_FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(.+?)(?: from (\S+)| at (\S+:\d+))?$")
_THREAD = re.compile(r"^Thread \d+ \(.*\bLWP (\d+)\b")
# torch generates a class at::_ops::NAME_OVERLOAD for each operator; every call goes through its `call` or `redispatch`.
_ATEN_CALL = re.compile(r"\bat::_ops::(\w+)::(?:call|redispatch)\b")
# Collectives are c10d::ops::NAME; the Reducer of DistributedDataParallel calls them from C++ without a Python frame.
_COLLECTIVE = re.compile(r"\bc10d::(?:ops::)?(?:\(anonymous namespace\)::)?(\w+)")
_LIBRARY_FILE = re.compile(
    r"/lib/python3[.\d]*/(?!\w+-packages/)|-packages/torch/|/roundoff/(?:\w+/)+\w+\.py|^<(?:frozen|string)"
)
_FATAL = "Fatal Python error"
_SIGNAL_FRAME = "<signal handler called>"
_ABORT_FRAME = re.compile(
    r"^(_*(GI_+)?(pthread_kill\w*|raise|abort|libc_message|fortify_fail|stack_chk_fail)|malloc_printerr|_int_free|"
    r"free|cfree|std::terminate|__gnu_cxx::\w+|__cxxabiv1::.*|_?_cxa_\w+|\?\?)(?!\w)"
)

Section: TypeAlias = Literal["crash", "hang"]
"""Why stacks were taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFrame:
    """A line of Python that was running."""

    file: str
    line: int
    function: str

    @property
    def is_the_users(self) -> bool:
        """Whether it belongs neither to torch, nor to Python's standard library, nor to roundoff."""
        return _LIBRARY_FILE.search(self.file) is None

    @property
    def source(self) -> str:
        """File and line, as findings show them: `model.py:41`."""
        return f"{shown_path(self.file)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFrame:
    """A native function that was running."""

    name: str
    """As in the source."""
    place: str | None
    """The library, or file and line if those are known."""

    @property
    def text(self) -> str:
        """Short name and place: `sgemm_ (libtorch_cpu.so)`."""
        name = self.name.replace("(anonymous namespace)::", "").partition("(")[0] or self.name
        return f"{name} ({self.place.rpartition('/')[2]})" if self.place else name


def python_frames(text: str, *, section: Section) -> list[PythonFrame]:
    """Return the frames, innermost first, of the thread that faulthandler calls current, or else of the main thread."""
    threads = _threads(_section(text, section), begins=("Current thread", "Thread "))
    if not threads:
        return []
    current = next((lines for heading, lines in threads if heading.startswith("Current")), threads[-1][1])
    return frames_in(current)


def frames_in(lines: Iterable[str]) -> list[PythonFrame]:
    """Return the frames among the lines of a traceback, in their order."""
    found = (_PYTHON_FRAME.match(line) for line in lines)
    return [PythonFrame(file=match[1], line=int(match[2]), function=match[3].strip()) for match in found if match]


def users_frame(frames: Iterable[PythonFrame]) -> PythonFrame | None:
    """Return the innermost frame of the user's own code; `frames` starts with the innermost."""
    return next((frame for frame in frames if frame.is_the_users), None)


def native_frames(text: str, *, section: Section, thread: int | None) -> list[NativeFrame]:
    """Return the frames of a thread, innermost first, without those that handle the signal or abort."""
    lines = _section(text, section)
    if lines and (named := re.search(r"in thread (\d+)", lines[0])):
        thread = int(named[1])
    threads = _threads(lines, begins=("Thread ",))
    chosen = [body for heading, body in threads if (match := _THREAD.match(heading)) and int(match[1]) == thread]
    frames = [frame for line in (chosen[0] if chosen else ()) if (frame := _native_frame(line)) is not None]
    signals = [place for place, frame in enumerate(frames) if frame.name == _SIGNAL_FRAME]
    if signals:
        frames = frames[signals[-1] + 1 :]
    while len(frames) > 1 and _ABORT_FRAME.match(frames[0].name):
        frames.pop(0)
    return frames


def aten_op(frames: Sequence[NativeFrame]) -> str | None:
    """Return the innermost torch op among native frames: `aten.mm`."""
    for frame in frames:
        if match := _ATEN_CALL.search(frame.name):
            return f"aten.{_without_overload(match[1])}"
    return None


def collective(python: Sequence[PythonFrame], native: Sequence[NativeFrame]) -> str | None:
    """Return the collective call that the process was in: `c10d.all_reduce`; None if it was in none."""
    for call in python:
        if call.file.endswith("torch/distributed/distributed_c10d.py") and not call.function.startswith("_"):
            return f"c10d.{call.function}"
    for frame in native:
        if match := _COLLECTIVE.search(frame.name):
            return "c10d.allreduce_" if match[1] == "Reducer" else f"c10d.{match[1]}"  # of DistributedDataParallel
    return None


def _without_overload(name: str) -> str:
    """Remove the overload from the name of a generated class: `add_Tensor` is `add`."""
    import torch

    parts = name.split("_")
    for end in range(len(parts), 0, -1):
        packet = getattr(torch.ops.aten, "_".join(parts[:end]), None)
        overload = "_".join(parts[end:]) or "default"
        if packet is not None and overload in packet.overloads():
            return "_".join(parts[:end])
    return name


def _native_frame(line: str) -> NativeFrame | None:
    match = _NATIVE_FRAME.match(line)
    if match is None:
        return None
    name = re.sub(r" \((?:\.\.\.)?\)$", "", match[1])
    return NativeFrame(name=name, place=match[2] or match[3])


def _section(text: str, kind: Section) -> list[str]:
    """Return the lines of the last section of a kind, its heading first; faulthandler writes one of its own."""
    sections: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("== ", _FATAL)):
            sections.append([])
        if sections:
            sections[-1].append(line)
    begins = ("== crash", _FATAL) if kind == "crash" else ("== hang",)
    return next((lines for lines in reversed(sections) if lines[0].startswith(begins)), [])


def _threads(lines: Sequence[str], *, begins: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(begins):
            found.append((line, []))
        elif found and line.strip():
            found[-1][1].append(line)
    return found


CRASH_SIGNALS = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS,
)  # fmt: skip
"""The signals by which a process ends itself."""

_IN_WORDS = {
    "Segmentation fault": signal.SIGSEGV, "Bus error": signal.SIGBUS, "Aborted": signal.SIGABRT,
    "Illegal instruction": signal.SIGILL, "Floating point exception": signal.SIGFPE,
}  # fmt: skip
"""As faulthandler writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMoment:
    """Where a process was when it crashed, hung or was killed."""

    rank: int
    ending: Ending
    flight: Flight | None
    python: tuple[PythonFrame, ...]
    """Innermost first; empty if there was no time to write them."""
    native: tuple[NativeFrame, ...]
    """Innermost first; empty without gdb."""

    @property
    def step(self) -> int | None:
        """The step it was in."""
        return self.flight.step if self.flight else None

    @property
    def phase(self) -> str | None:
        """What the loop was doing."""
        return self.flight.phase if self.flight and not self.ending.was_over else None

    @property
    def site(self) -> str | None:
        """The innermost module that was running."""
        return self.flight.site if self.flight and not self.ending.was_over else None

    @property
    def op(self) -> str | None:
        """The op that was running, from the flight recorder or else from the native stack."""
        flight = self.flight
        if self.ending.has_ops and flight is not None and flight.op is not None and not flight.is_op_done:
            return flight.op
        return self.collective or aten_op(self.native)

    @property
    def last_op(self) -> str | None:
        """The last op that started, if every op was recorded."""
        return self.flight.op if self.flight else None

    @property
    def collective(self) -> str | None:
        """The collective call it was in."""
        return collective(self.python, self.native)

    @property
    def may_wait_for_others(self) -> bool:
        """Whether it was in a collective call, or in a backward that may contain one and left no native stack."""
        # Python only sees this call of autograd while C++ threads run the backward, collectives included.
        in_backward = bool(self.python) and self.python[0].function == "_engine_run_backward"
        return self.collective is not None or (in_backward and not self.native)

    @property
    def waits_for_data(self) -> bool:
        """Whether it was waiting for a DataLoader worker."""
        return any(frame.file.endswith("torch/utils/data/dataloader.py") for frame in self.python)

    @property
    def source(self) -> str | None:
        """The innermost line of the user's own code."""
        frame = users_frame(self.python)
        return None if frame is None else frame.source

    @property
    def evidence(self) -> tuple[JsonValue, ...]:
        """The innermost frames of both stacks, and the modules that were running."""
        python: list[JsonValue] = [f"{frame.source} in {frame.function}" for frame in self.python[:12]]
        native: list[JsonValue] = [frame.text for frame in self.native[:12]]
        sites: list[JsonValue] = list(self.flight.sites) if self.flight else []
        return tuple(
            value
            for value in ({"native_stack": native}, {"python_stack": python}, {"sites": sites})
            if next(iter(value.values()))
        )


def last_moment(run: Run, rank: int) -> LastMoment | None:
    """Return where a rank was when it ended or hung; None if no parent waited for it and it wrote no stacks itself."""
    python, native = run.python_stacks(rank=rank), run.native_stacks(rank=rank)
    ending = run.ending(rank=rank) or _ending_in(python)
    if ending is None:
        return None
    section: Section = "crash" if ending.signal in CRASH_SIGNALS else "hang"
    return LastMoment(
        rank=rank,
        ending=ending,
        flight=run.flight(rank=rank),
        python=tuple(python_frames(python, section=section)),
        native=tuple(native_frames(native, section=section, thread=ending.pid)),
    )


def _ending_in(stacks: str) -> Ending | None:
    """Return the crash that faulthandler reported in a process without a waiting parent."""
    for words, number in _IN_WORDS.items():
        if f"Fatal Python error: {words}" in stacks:
            return Ending(pid=0, signal=number)
    return None
