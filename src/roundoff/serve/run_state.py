"""Whether a run goes on, has ended, crashed, hangs or fell silent: what its folder tells."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from roundoff.runs import Ending, RunInfo

State = Literal["running", "silent", "hanging", "finished", "failed", "crashed"]
STATES: tuple[State, ...] = ("running", "silent", "hanging", "finished", "failed", "crashed")

SILENT_AFTER_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A word for the state of a run, and what more is known."""

    word: State
    detail: str = ""


def state_of(info: RunInfo, endings: Sequence[Ending], *, seconds_quiet: float) -> RunState:
    """Say how a run is.

    A run that was killed without anybody watching says for ever that it is running: it is silent, and how long tells
    whether to wait.

    Args:
        info: its run.json.
        endings: what is known of its processes' ends, of each that has something to say.
        seconds_quiet: since anything in its folder changed.
    """
    dead = next((ending for ending in endings if _has_died(ending)), None)
    if dead is not None:
        was_wanted = dead.signal is not None and dead.signal == dead.forwarded_signal
        return RunState(word="failed" if was_wanted else "crashed", detail=_death(dead))
    if info.status == "failed":
        return RunState(word="failed", detail="it ended with an error")
    if info.status == "finished":
        return RunState(word="finished")
    hang = next((ending for ending in endings if _hangs(ending)), None)
    if hang is not None and hang.seconds_without_progress is not None:
        return RunState(word="hanging", detail=f"no progress for {in_words(hang.seconds_without_progress)}")
    if seconds_quiet > SILENT_AFTER_SECONDS:
        return RunState(word="silent", detail=f"nothing written for {in_words(seconds_quiet)}; was it killed?")
    return RunState(word="running")


def in_words(seconds: float) -> str:
    """Say how long something took, in its largest unit.

    >>> in_words(59), in_words(3700), in_words(200_000)
    ('59 s', '1 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _has_died(ending: Ending) -> bool:
    return not ending.was_over and (ending.was_stopped or ending.signal is not None or bool(ending.exit_code))


def _hangs(ending: Ending) -> bool:
    return ending.seconds_without_progress is not None and ending.exit_code is None and not ending.has_gone_on


def _death(ending: Ending) -> str:
    if ending.was_stopped:
        return "it hung and was ended"
    if ending.signal is not None:
        name = str(ending.signal)
        with suppress(ValueError):
            name = signal.Signals(ending.signal).name
        return f"ended by {name}" + (", which somebody sent" if ending.signal == ending.forwarded_signal else "")
    return f"ended with exit code {ending.exit_code}"
