"""Monitors a child process for its parent: forwards signals, checks memory and progress, saves stacks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from roundoff.files import append_text, read_bytes
from roundoff.runs.files.folder import crash_path, ending_path, flight_path, native_crash_path
from roundoff.runs.flight import read_heartbeat, save_shared_flight
from roundoff.runs.records.info import Ending
from roundoff.watch.process.host_memory import num_bytes_read, read_memory
from roundoff.watch.process.ipc import (
    STACKS_SIGNAL,
    WAKE_SIGNAL,
    GroupSentinel,
    RunLocation,
    SharedPage,
    send_to_thread,
    wait_for_signal,
)

_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""How long a child may take to stop before it is killed."""
_MAX_WAIT_FOR_OTHERS_SECONDS = 15.0
_MIN_READ_BYTES = 4096
"""A script that has not begun to train makes progress if it reads this much; a thread that only waits reads less."""
_FATAL = "Fatal Python error"
_ENDING_SIGNALS = {getattr(signal, name, 0) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")}
_STOP_SIGNALS = {getattr(signal, name, 0) for name in ("SIGTSTP", "SIGTTIN", "SIGTTOU")}


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
        self._num_bytes_read = 0
        self._hangs_since: float | None = None
        self._kill_at: float | None = None
        self._sentinel = GroupSentinel()
        self._stop_signal: int | None = None
        """A signal that suspends processes, sent to this process, which is not suspended yet."""

    def wait(self, signals: Sequence[int]) -> Ending:
        """Wait until the child has ended, and return how; the signals must be blocked."""
        pause = min(_CHECK_SECONDS, self._hang_after / 4) if self._hang_after else _CHECK_SECONDS
        while True:
            came = wait_for_signal(signals, pause)
            if came is not None and came.si_signo == WAKE_SIGNAL:
                self._take_crash()
            elif came is not None and came.si_signo != signal.SIGCHLD:
                self._forward(came)
            ended, status, usage = os.wait4(self._child, os.WNOHANG | os.WUNTRACED)
            if ended and not os.WIFSTOPPED(status):
                self._sentinel.close()
                return self._close(os.waitstatus_to_exitcode(status), 1024 * usage.ru_maxrss)
            if self._stop_signal is not None and _is_stopped(self._child):
                self._stop_too(self._stop_signal)
            if came is None or time.monotonic() - self._checked_at > pause:
                self._check()

    def _forward(self, came: signal.struct_siginfo) -> None:
        """Forward a signal, except one that was sent to the process group: the child has received it already."""
        if came.si_signo in _ENDING_SIGNALS and not self._page.script_has_ended:
            self._ending = replace(self._ending, forwarded_signal=came.si_signo)
        if came.si_signo in _STOP_SIGNALS:
            self._stop_signal = came.si_signo
        elif came.si_signo == signal.SIGCONT:
            self._stop_signal = None
        if came.si_code <= 0 and not self._sentinel.has_received(came.si_signo):
            self._send(came.si_signo)

    def _stop_too(self, number: int) -> None:
        """Suspend this process, as a shell expects of its job, now that the child is suspended.

        Of a signal to both, either may hear first. One to the child alone leaves this process running, to be there
        when the child is resumed.
        """
        self._stop_signal = None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])

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
        with contextlib.suppress(OSError, MemoryError):
            path = flight_path(location.path, rank=location.rank)
            heartbeat = read_heartbeat(path, shared=self._page.flight)
            if heartbeat != self._heartbeat or self._page.is_closed or (not heartbeat and self._reads_files()):
                self._heartbeat, self._progress_at = heartbeat, now
                self._note_progress(location, now)
            elif self._hangs_since is None and now - self._progress_at > hang_after:
                self._report_hang(location, now, hang_after)

    def _reads_files(self) -> bool:
        """Return whether the child has read from files since the last call: imports and data may take long to load."""
        num_bytes = num_bytes_read(self._child)
        has_read = num_bytes - self._num_bytes_read >= _MIN_READ_BYTES
        if has_read:
            self._num_bytes_read = num_bytes
        return has_read

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
        if (
            not self._page.script_has_ended
        ):  # else an exception has ended it meanwhile, and the child prints the verdict
            if stops:
                self._page.note_reported()
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
            with contextlib.suppress(OSError, MemoryError):
                # A script that has enabled faulthandler itself gets its stacks elsewhere; these are for the run.
                if _FATAL not in read_bytes(stacks).decode(errors="replace"):
                    self._ask_for_python_stacks(location, thread, heading)
            self._take_native_stacks(location, heading)
        self._page.answer()

    def _ask_for_python_stacks(self, location: RunLocation, thread: int, heading: str) -> None:
        path = crash_path(location.path, rank=location.rank)
        with contextlib.suppress(OSError, MemoryError):
            append_text(path, f"== {heading}\n")
            before = path.stat().st_size
            send_to_thread(self._child, thread, STACKS_SIGNAL)
            _wait_until_written(path, before)

    def _take_native_stacks(self, location: RunLocation, heading: str) -> None:
        began = time.monotonic()
        with contextlib.suppress(OSError, MemoryError):
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
            is_interrupted = self._page.script_has_ended and self._ending.signal in _ENDING_SIGNALS
            has_reported = self._page.is_closed and self._ending.signal is None
            if has_reported or is_interrupted or self._ending.was_stopped:  # a hang was reported when it was stopped
                self._write(location)
            else:
                self._report(location)
        return self._ending

    def _report(self, location: RunLocation) -> None:
        self._write(location)
        if self._on_ending is None:
            return
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # a user may be too impatient for a diagnosis
        try:
            self._on_ending(location.path, location.rank, self._ending)
        except KeyboardInterrupt:
            if self._ending.exit_code is None and self._ending.signal is None:  # the child hangs, and runs still
                self._send(signal.SIGINT)
        except Exception:  # failing to report must not change how the training continues or ends
            traceback.print_exc()
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])

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
        with contextlib.suppress(OSError, MemoryError):
            save_shared_flight(self._page.flight, flight_path(location.path, rank=location.rank))
        with contextlib.suppress(OSError, MemoryError):
            self._ending.write(location.path, rank=location.rank)

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(self._child, number)


def _num_ranks() -> int:
    """Return how many ranks a launcher has started."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    return int(world_size) if world_size.isdecimal() else 1


def _is_stopped(process: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


def _wait_until_written(path: Path, size: int) -> None:
    """Wait until a file has grown beyond `size` and stopped growing, for 3 seconds at most."""
    end = time.monotonic() + 3.0
    last = size
    while time.monotonic() < end:
        time.sleep(0.05)
        now = path.stat().st_size
        if now == last > size:
            return
        last = now


def _remove_empty_stacks(location: RunLocation) -> None:
    path = crash_path(location.path, rank=location.rank)
    with contextlib.suppress(OSError, MemoryError):
        if path.stat().st_size == 0:
            path.unlink()


def _clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def wait_for_endings(folder: Path, *, ranks: Iterable[int], seconds: float = 15.0) -> bool:
    """Wait until the endings of these ranks are in the run folder, and return whether they are.

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


_MAX_GDB_SECONDS = 30.0
_MAX_FRAMES = 64


def write_native_stacks(process: int, path: Path, *, heading: str) -> bool:
    """Append the stacks of all threads of a process to a file, and return whether that worked.

    The process is stopped meanwhile, for a few seconds, and then continues.
    """
    gdb = shutil.which("gdb")
    if gdb is None:
        return False
    environment = {name: value for name, value in os.environ.items() if name not in ("DEBUGINFOD_URLS", "LD_PRELOAD")}
    try:
        answer = subprocess.run(
            [gdb, *_gdb_options(), "-p", str(process)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAX_GDB_SECONDS,
            env=environment,
            preexec_fn=_unblock_signals,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    stacks = _stacks_in(answer.stdout.decode(errors="replace"))
    if not stacks:
        return False
    append_text(path, f"== {heading}\n{stacks}\n")
    return True


def _unblock_signals() -> None:
    """Unblock in gdb the signals that the waiting parent has blocked."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _gdb_options() -> list[str]:
    """Request nothing but stacks: no start-up files, no scripts of the libraries, no symbols from the network.

    Torch has so many symbols that gdb would spend most of its time demangling them; we demangle the few in the stacks.
    """
    before = ("set debuginfod enabled off", "set auto-load off", "set demangle-style none", "set width 0")
    wanted = ("set print frame-arguments presence", f"thread apply all backtrace {_MAX_FRAMES}")
    options = ["-batch", "-nx"]
    for command in before:
        options += ["-iex", command]
    for command in wanted:
        options += ["-ex", command]
    return options


def _stacks_in(text: str) -> str:
    """Drop what gdb prints while it attaches, and demangle the names."""
    lines = [line for line in text.splitlines() if line.startswith(("#", "Thread "))]
    return _demangle("\n".join(lines)) if any(line.startswith("#") for line in lines) else ""


def _demangle(text: str) -> str:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return text
    demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
    demangle.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def name(match: re.Match[str]) -> str:
        status = ctypes.c_int()
        found = demangle(match[0].encode(), None, None, ctypes.byref(status))
        if not found:
            return match[0]
        written = ctypes.string_at(found).decode(errors="replace")
        free(found)
        return written

    return re.sub(r"\b_Z\w+", name, text)
