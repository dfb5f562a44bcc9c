"""Monitors a child process for its parent: forwards signals, checks memory and progress, saves stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from roundoff.runs.files.folder import crash_path, ending_path, flight_path, native_crash_path
from roundoff.runs.flight import read_heartbeat
from roundoff.runs.records.info import Ending
from roundoff.watch.process.host_memory import read_memory
from roundoff.watch.process.ipc import STACKS_SIGNAL, WAKE_SIGNAL, RunLocation, SharedPage, send_to_thread
from roundoff.watch.process.native_stack import write_native_stacks

_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""How long a child may take to stop before it is killed."""
_MAX_WAIT_FOR_OTHERS_SECONDS = 15.0
_FATAL = "Fatal Python error"


class ChildMonitor:
    """Waits for one child, and reports if it hangs, crashes or is killed."""

    def __init__(
        self,
        child: int,
        page: SharedPage,
        *,
        hang_after: float | None,
        on_hang: Literal["report", "stop"],
        on_ending: Callable[[Path, int, Ending], None] | None,
    ) -> None:
        self._child, self._page = child, page
        self._hang_after, self._on_hang, self._on_ending = hang_after, on_hang, on_ending
        self._ending = Ending(pid=child)
        self._before = self._memory = read_memory(child)
        self._heartbeat = -1
        self._progress_at = self._checked_at = time.monotonic()
        self._hangs_since: float | None = None
        self._kill_at: float | None = None

    def wait(self, signals: Sequence[int]) -> Ending:
        """Wait until the child has ended, and return how; the signals must be blocked."""
        pause = min(_CHECK_SECONDS, self._hang_after / 4) if self._hang_after else _CHECK_SECONDS
        while True:
            came = signal.sigtimedwait(signals, pause)
            if came is not None and came.si_signo == WAKE_SIGNAL:
                self._take_crash()
            elif came is not None and came.si_signo != signal.SIGCHLD:
                self._forward(came)
            ended, status, usage = os.wait4(self._child, os.WNOHANG)
            if ended:
                return self._close(os.waitstatus_to_exitcode(status), 1024 * usage.ru_maxrss)
            if came is None or time.monotonic() - self._checked_at > pause:
                self._check()

    def _forward(self, came: signal.struct_siginfo) -> None:
        """Forward a signal, except one from the terminal, which the child has received already."""
        if came.si_signo not in (signal.SIGUSR1, signal.SIGUSR2):
            self._ending = replace(self._ending, forwarded_signal=came.si_signo)
        if came.si_code <= 0:
            self._send(came.si_signo)

    def _check(self) -> None:
        now = time.monotonic()
        if now - self._checked_at > 5 * _CHECK_SECONDS or _is_stopped(self._child):
            self._progress_at = now  # the machine was asleep, or the child is suspended: not a hang
        self._checked_at = now
        memory = read_memory(self._child)
        if memory.rss_bytes:  # a process that has ended uses none
            self._memory = memory
        if self._kill_at is not None:
            if now > self._kill_at:
                self._send(signal.SIGKILL)
        elif self._hang_after is not None and (location := self._page.location()) is not None:
            self._check_progress(location, now, self._hang_after)

    def _check_progress(self, location: RunLocation, now: float, hang_after: float) -> None:
        with contextlib.suppress(OSError):
            heartbeat = read_heartbeat(flight_path(location.path, rank=location.rank))
            if heartbeat != self._heartbeat or self._page.is_closed:
                self._heartbeat, self._progress_at = heartbeat, now
                self._note_progress(location, now)
            elif self._hangs_since is None and now - self._progress_at > hang_after:
                self._report_hang(location, now, hang_after)

    def _report_hang(self, location: RunLocation, now: float, hang_after: float) -> None:
        self._hangs_since = self._progress_at
        seconds = now - self._progress_at
        heading = f"hang: no progress for {seconds:.0f} s, {_clock()}"
        self._take_native_stacks(location, heading)
        self._ask_for_python_stacks(location, self._child, heading)  # second: the signal interrupts some system calls
        longest = max(seconds, self._ending.seconds_without_progress or 0.0)
        stops = self._on_hang == "stop"
        self._ending = replace(self._ending, seconds_without_progress=longest, has_gone_on=False, was_stopped=stops)
        self._write(location)
        # Stopped only after the other ranks have noticed that they hang too: a launcher ends them when one has ended.
        wait_for_endings(
            location.path, ranks=range(_num_ranks()), seconds=min(hang_after, _MAX_WAIT_FOR_OTHERS_SECONDS)
        )
        self._report(location)
        if stops:
            self._send(signal.SIGTERM)
            self._kill_at = time.monotonic() + _GRACE_SECONDS

    def _note_progress(self, location: RunLocation, now: float) -> None:
        if self._hangs_since is not None:
            longest = max(now - self._hangs_since, self._ending.seconds_without_progress or 0.0)
            self._ending = replace(self._ending, seconds_without_progress=longest, has_gone_on=True)
            self._hangs_since = None
            self._write(location)

    def _take_crash(self) -> None:
        """Save the stacks of a child that is crashing and waits for that."""
        crash, location = self._page.crash(), self._page.location()
        if crash is not None and location is not None:
            number, thread = crash
            heading = f"crash: signal {number} in thread {thread}, {_clock()}"
            stacks = crash_path(location.path, rank=location.rank)
            with contextlib.suppress(OSError):
                # A script that has enabled faulthandler itself gets its stacks elsewhere; these are for the run.
                if _FATAL not in stacks.read_text(errors="replace"):
                    self._ask_for_python_stacks(location, thread, heading)
            self._take_native_stacks(location, heading)
        self._page.answer()

    def _ask_for_python_stacks(self, location: RunLocation, thread: int, heading: str) -> None:
        path = crash_path(location.path, rank=location.rank)
        with contextlib.suppress(OSError):
            with path.open("a", encoding="utf-8") as file:
                file.write(f"== {heading}\n")
            before = path.stat().st_size
            send_to_thread(self._child, thread, STACKS_SIGNAL)
            _wait_until_written(path, before)

    def _take_native_stacks(self, location: RunLocation, heading: str) -> None:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            if write_native_stacks(self._child, native_crash_path(location.path, rank=location.rank), heading=heading):
                self._ending = replace(self._ending, native_seconds=time.monotonic() - began)

    def _close(self, code: int, peak_rss_bytes: int) -> Ending:
        hung = 0.0 if self._hangs_since is None else time.monotonic() - self._hangs_since
        self._ending = replace(
            self._ending,
            seconds_without_progress=max(hung, self._ending.seconds_without_progress or 0.0) or None,
            has_gone_on=self._ending.has_gone_on or (hung > 0 and code == 0),
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_rss_bytes=peak_rss_bytes,
            was_over=self._page.is_closed,
        )
        if (location := self._page.location()) is not None:
            _remove_empty_stacks(location)
            has_reported = self._page.is_closed and self._ending.signal is None
            if has_reported or self._ending.was_stopped:  # a hang was reported when it was stopped
                self._write(location)
            else:
                self._report(location)
        return self._ending

    def _report(self, location: RunLocation) -> None:
        self._write(location)
        if self._on_ending is None:
            return
        try:
            self._on_ending(location.path, location.rank, self._ending)
        except Exception:  # failing to report must not change how the training continues or ends
            traceback.print_exc()

    def _write(self, location: RunLocation) -> None:
        kills, before = read_memory(self._child).num_oom_kills, self._before.num_oom_kills
        self._ending = replace(
            self._ending,
            last_rss_bytes=self._memory.rss_bytes,
            available_bytes=self._memory.available_bytes,
            memory_bytes=self._memory.total_bytes,
            num_oom_kills=None if kills is None or before is None else kills - before,
            is_sync=location.is_sync,
            has_ops=location.has_ops,
        )
        with contextlib.suppress(OSError):
            self._ending.write(location.path, rank=location.rank)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)


def _num_ranks() -> int:
    """Return how many ranks a launcher has started."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    return int(world_size) if world_size.isdecimal() else 1


def _is_stopped(process: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _wait_until_written(path: Path, size: int, *, seconds: float = 3.0) -> None:
    """Wait until a file has grown beyond `size` and stopped growing."""
    end = time.monotonic() + seconds
    last = size
    while time.monotonic() < end:
        time.sleep(0.05)
        now = path.stat().st_size
        if now == last > size:
            return
        last = now


def _remove_empty_stacks(location: RunLocation) -> None:
    path = crash_path(location.path, rank=location.rank)
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def wait_for_endings(folder: Path, *, ranks: Iterable[int], seconds: float = 15.0) -> bool:
    """Wait until the endings of these ranks are in the run folder, and say whether they are.

    Ranks end at different times, and hang together: one by itself, the others because they wait for it. Each has a
    parent of its own, which first saves its stacks.
    """
    end = time.monotonic() + seconds
    missing = list(ranks)
    while missing := [rank for rank in missing if not ending_path(folder, rank=rank).exists()]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return not missing
