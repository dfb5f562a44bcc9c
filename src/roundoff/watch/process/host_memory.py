"""How much memory a process holds, how much is left for it, and whether the kernel killed somebody for want of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What one look at a process's memory gave; None for what the system does not tell."""

    rss_bytes: int | None = None
    available_bytes: int | None = None
    """What is left for more: the machine's, or below the tightest limit of its control groups."""
    total_bytes: int | None = None
    """The machine's memory, or that limit."""
    num_oom_kills: int | None = None
    """Of the control group where it counts them, else of the machine, since it started."""


def read_memory(process: int) -> HostMemory:
    """Look at the memory of this process's child, or its own; cheap enough for once a second."""
    total, available = _of_machine()
    for limit, used in _limits():
        if total is None or limit < total:
            total = limit
        if available is None or limit - used < available:
            available = max(limit - used, 0)
    return HostMemory(
        rss_bytes=_rss(process), available_bytes=available, total_bytes=total, num_oom_kills=_num_oom_kills()
    )


def _rss(process: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_machine() -> tuple[int | None, int | None]:
    fields = _fields(Path("/proc/meminfo"))
    total, available = fields.get("MemTotal:"), fields.get("MemAvailable:")
    return (None if total is None else 1024 * total), (None if available is None else 1024 * available)


def _limits() -> Iterator[tuple[int, int]]:
    """Give limit and use of every control group around us that has a limit."""
    for folder in _control_groups():
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                # What is kept of files can be dropped, so it does not count as used.
                yield limit, used - _fields(folder / "memory.stat").get("inactive_file", 0)


def _num_oom_kills() -> int | None:
    for folder in _control_groups():
        for name in ("memory.events", "memory.oom_control"):
            if (kills := _fields(folder / name).get("oom_kill")) is not None:
                return kills
    return _fields(Path("/proc/vmstat")).get("oom_kill")


def _control_groups() -> Iterator[Path]:
    """Give our own control group for memory, which a child shares, and those around it."""
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
    """Read a file of lines that are a name and a number."""
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
