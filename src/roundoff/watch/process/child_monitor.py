"""What the parent of a watched process does: passes signals on, looks after memory and progress, takes stacks."""

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

# == The endings of the other ranks of a launch.


def wait_for_endings(folder: Path, *, ranks: Iterable[int], seconds: float = 15.0) -> bool:
    """Wait until the endings of these ranks are in the run folder, and say whether they are.

    Ranks end at different times, and hang together, one because of itself and the others because they wait for it;
    each is looked at by its own parent, which takes its stacks first.
    """
    end = time.monotonic() + seconds
    missing = list(ranks)
    while missing := [rank for rank in missing if not ending_path(folder, rank=rank).exists()]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return not missing


_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""How long a child that is to stop has before it is killed."""
_MAX_WAIT_FOR_OTHERS_SECONDS = 15.0
_FATAL = "Fatal Python error"


class ChildMonitor:
    """Waits for one child to its end."""

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
        self._progress_at = self._looked_at = time.monotonic()
        self._hangs_since: float | None = None
        self._kill_at: float | None = None

    def keep(self, signals: Sequence[int]) -> Ending:
        """Wait until the child has ended, and return how; the signals must be blocked."""
        pause = min(_CHECK_SECONDS, self._hang_after / 4) if self._hang_after else _CHECK_SECONDS
        while True:
            came = signal.sigtimedwait(signals, pause)
            if came is not None and came.si_signo == WAKE_SIGNAL:
                self._take_crash()
            elif came is not None and came.si_signo != signal.SIGCHLD:
                self._pass_on(came)
            ended, status, usage = os.wait4(self._child, os.WNOHANG)
            if ended:
                return self._close(os.waitstatus_to_exitcode(status), 1024 * usage.ru_maxrss)
            if came is None or time.monotonic() - self._looked_at > pause:
                self._look()

    def _pass_on(self, came: signal.struct_siginfo) -> None:
        """Hand a signal to the child, except for one from the terminal, which the child has got already."""
        if came.si_signo not in (signal.SIGUSR1, signal.SIGUSR2):
            self._ending = replace(self._ending, forwarded_signal=came.si_signo)
        if came.si_code <= 0:
            self._send(came.si_signo)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > 5 * _CHECK_SECONDS or _is_stopped(self._child):
            self._progress_at = now  # all of us were asleep, or it is suspended: that is no hang
        self._looked_at = now
        memory = read_memory(self._child)
        if memory.rss_bytes:  # a process that has ended holds none
            self._memory = memory
        if self._kill_at is not None:
            if now > self._kill_at:
                self._send(signal.SIGKILL)
        elif self._hang_after is not None and (where := self._page.where()) is not None:
            self._look_for_progress(where, now, self._hang_after)

    def _look_for_progress(self, where: RunLocation, now: float, hang_after: float) -> None:
        with contextlib.suppress(OSError):
            heartbeat = read_heartbeat(flight_path(where.path, rank=where.rank))
            if heartbeat != self._heartbeat or self._page.is_closed:
                self._heartbeat, self._progress_at = heartbeat, now
                self._note_that_it_goes_on(where, now)
            elif self._hangs_since is None and now - self._progress_at > hang_after:
                self._take_hang(where, now, hang_after)

    def _take_hang(self, where: RunLocation, now: float, hang_after: float) -> None:
        self._hangs_since = self._progress_at
        seconds = now - self._progress_at
        heading = f"hang: no progress for {seconds:.0f} s, {_clock()}"
        self._take_native_stacks(where, heading)
        self._ask_for_python_stacks(where, self._child, heading)  # second: the signal cuts some system calls short
        longest = max(seconds, self._ending.seconds_without_progress or 0.0)
        stops = self._on_hang == "stop"
        self._ending = replace(self._ending, seconds_without_progress=longest, has_gone_on=False, was_stopped=stops)
        self._write(where)
        # It is stopped when the others have seen that they hang, too: a launcher ends them as soon as one has ended.
        wait_for_endings(where.path, ranks=range(_num_ranks()), seconds=min(hang_after, _MAX_WAIT_FOR_OTHERS_SECONDS))
        self._tell(where)
        if stops:
            self._send(signal.SIGTERM)
            self._kill_at = time.monotonic() + _GRACE_SECONDS

    def _note_that_it_goes_on(self, where: RunLocation, now: float) -> None:
        if self._hangs_since is not None:
            longest = max(now - self._hangs_since, self._ending.seconds_without_progress or 0.0)
            self._ending = replace(self._ending, seconds_without_progress=longest, has_gone_on=True)
            self._hangs_since = None
            self._write(where)

    def _take_crash(self) -> None:
        """Take the stacks of a child that is crashing and waits for us to do so."""
        crash, where = self._page.crash(), self._page.where()
        if crash is not None and where is not None:
            number, thread = crash
            heading = f"crash: signal {number} in thread {thread}, {_clock()}"
            stacks = crash_path(where.path, rank=where.rank)
            with contextlib.suppress(OSError):
                # A script that turned faulthandler on by itself has its stacks where it wants them; we want ours.
                if _FATAL not in stacks.read_text(errors="replace"):
                    self._ask_for_python_stacks(where, thread, heading)
            self._take_native_stacks(where, heading)
        self._page.answer()

    def _ask_for_python_stacks(self, where: RunLocation, thread: int, heading: str) -> None:
        path = crash_path(where.path, rank=where.rank)
        with contextlib.suppress(OSError):
            with path.open("a", encoding="utf-8") as file:
                file.write(f"== {heading}\n")
            before = path.stat().st_size
            send_to_thread(self._child, thread, STACKS_SIGNAL)
            _wait_until_written(path, before)

    def _take_native_stacks(self, where: RunLocation, heading: str) -> None:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            if write_native_stacks(self._child, native_crash_path(where.path, rank=where.rank), heading=heading):
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
        if (where := self._page.where()) is not None:
            _remove_empty_stacks(where)
            has_spoken = self._page.is_closed and self._ending.signal is None
            if has_spoken or self._ending.was_stopped:  # of a hang that we ended we have told
                self._write(where)
            else:
                self._tell(where)
        return self._ending

    def _tell(self, where: RunLocation) -> None:
        self._write(where)
        if self._on_ending is None:
            return
        try:
            self._on_ending(where.path, where.rank, self._ending)
        except Exception:  # the training goes on, or has ended: a failure to tell of it must not change that
            traceback.print_exc()

    def _write(self, where: RunLocation) -> None:
        kills, before = read_memory(self._child).num_oom_kills, self._before.num_oom_kills
        self._ending = replace(
            self._ending,
            last_rss_bytes=self._memory.rss_bytes,
            available_bytes=self._memory.available_bytes,
            memory_bytes=self._memory.total_bytes,
            num_oom_kills=None if kills is None or before is None else kills - before,
            is_sync=where.is_sync,
            has_ops=where.has_ops,
        )
        with contextlib.suppress(OSError):
            self._ending.write(where.path, rank=where.rank)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)


def _num_ranks() -> int:
    """Return how many ranks a launcher has started."""
    told = os.environ.get("WORLD_SIZE", "1")
    return int(told) if told.isdecimal() else 1


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


def _remove_empty_stacks(where: RunLocation) -> None:
    path = crash_path(where.path, rank=where.rank)
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
