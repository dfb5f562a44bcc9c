"""How much memory a process uses, is available to it and was read by it; whether the kernel's OOM killer has struck."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60
_USUAL_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of a process at one moment; None for what the system does not report."""

    rss_bytes: int | None = None
    available_bytes: int | None = None
    """What the process can still allocate: on the machine, or below the tightest limit of its control groups."""
    total_bytes: int | None = None
    """The machine's memory, or that limit."""
    num_oom_kills: int | None = None
    """Counted by the control group if it does so, else by the machine, since it started."""


def read_memory(process: int) -> HostMemory:
    """Read the memory of this process or of a child of it; cheap enough to do once a second."""
    total, available = _of_machine()
    for limit, used in _limits():
        if total is None or limit < total:
            total = limit
        if available is None or limit - used < available:
            available = max(limit - used, 0)
    return HostMemory(
        rss_bytes=_rss(process), available_bytes=available, total_bytes=total, num_oom_kills=_num_oom_kills()
    )


def num_bytes_read(process: int) -> int:
    """Return how much a child of this process has read from files so far; 0 if the system does not say."""
    return _fields(Path(f"/proc/{process}/io")).get("rchar:", 0)


def default_memory_bytes() -> int:
    """Return how much memory snapshots and replays may take by default: a quarter of what is free now."""
    available = read_memory(os.getpid()).available_bytes
    return _USUAL_BYTES if available is None else available // 4


def _rss(process: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_machine() -> tuple[int | None, int | None]:
    fields = _fields(Path("/proc/meminfo"))
    total, available = fields.get("MemTotal:"), fields.get("MemAvailable:")
    return (None if total is None else 1024 * total), (None if available is None else 1024 * available)


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and use of every control group of this process that has a limit."""
    for folder in _control_groups():
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                # The kernel drops cached files when memory is needed, so they do not count as used.
                yield limit, used - _fields(folder / "memory.stat").get("inactive_file", 0)


def _num_oom_kills() -> int | None:
    for folder in _control_groups():
        for name in ("memory.events", "memory.oom_control"):
            if (kills := _fields(folder / name).get("oom_kill")) is not None:
                return kills
    return _fields(Path("/proc/vmstat")).get("oom_kill")


def _control_groups() -> Iterator[Path]:
    """Yield the memory control group of this process, which a child shares, and its parents."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            root = _CGROUPS / "memory" if kinds else _CGROUPS
            folder = root / name.lstrip("/")
            while folder.is_relative_to(root):
                yield folder
                folder = folder.parent


def _fields(path: Path) -> dict[str, int]:
    """Read a file whose lines are a name and a number."""
    found = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(" ")
            with contextlib.suppress(ValueError):
                found[name] = int(rest.split()[0]) if rest.split() else 0
    return found


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None
