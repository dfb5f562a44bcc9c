"""What a process was doing at its last moment, put together from its flight recorder and its stacks."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from roundoff.diagnose.stacks import (
    NativeFrame,
    PythonFrame,
    Section,
    aten_op,
    collective,
    native_frames,
    python_frames,
    users_frame,
)
from roundoff.runs import Ending, Flight, JsonValue, Run

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
        """The op that was running: as it was noted, or else as the native stack tells."""
        flight = self.flight
        if self.ending.has_ops and flight is not None and flight.op is not None and not flight.is_op_done:
            return flight.op
        return self.collective or aten_op(self.native)

    @property
    def last_op(self) -> str | None:
        """The last op that began, where every op was noted."""
        return self.flight.op if self.flight else None

    @property
    def collective(self) -> str | None:
        """The collective it was in."""
        return collective(self.python, self.native)

    @property
    def may_wait_for_others(self) -> bool:
        """Whether it was in a collective, or, where no native stack tells, in a backward that may hold one."""
        in_backward = bool(self.python) and self.python[0].function == "_engine_run_backward"
        return self.collective is not None or (in_backward and not self.native)

    @property
    def waits_for_data(self) -> bool:
        """Whether it was waiting for a worker of a DataLoader."""
        return any(frame.file.endswith("torch/utils/data/dataloader.py") for frame in self.python)

    @property
    def source(self) -> str | None:
        """The innermost line of the user's own code."""
        frame = users_frame(self.python)
        return None if frame is None else frame.source

    @property
    def evidence(self) -> tuple[JsonValue, ...]:
        """Both stacks, the innermost frames of each, and the modules that were running."""
        python: list[JsonValue] = [f"{frame.source} in {frame.function}" for frame in self.python[:12]]
        native: list[JsonValue] = [frame.told for frame in self.native[:12]]
        sites: list[JsonValue] = list(self.flight.sites) if self.flight else []
        return tuple(
            value
            for value in ({"native_stack": native}, {"python_stack": python}, {"sites": sites})
            if next(iter(value.values()))
        )


def last_moment(run: Run, rank: int) -> LastMoment | None:
    """Return where a rank was when it ended or hung; None if nobody waited for it and it wrote no stacks itself."""
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
    """Return the crash that faulthandler wrote of in a process that nobody waited for."""
    for words, number in _IN_WORDS.items():
        if f"Fatal Python error: {words}" in stacks:
            return Ending(pid=0, signal=number)
    return None
