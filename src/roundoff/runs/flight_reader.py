"""Reads what the flight recorder of a process noted, dead or alive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from roundoff.errors import RunFolderError
from roundoff.runs.flight_layout import (
    COUNT,
    DEPTH,
    FLIGHT_VERSION,
    KINDS,
    MAGIC,
    MAGIC_WORD,
    MAX_DEPTH,
    MONOTONIC_NS,
    NAMES_BYTES,
    NAMES_OFFSET,
    NAMES_USED,
    NUM_RECORDS,
    OP,
    PHASE,
    PID,
    RING,
    STACK,
    STEP,
    TOTAL_BYTES,
    UNIX_NS,
    VERSION_WORD,
    RecordKind,
)

_BEING_OVERWRITTEN = 64
"""The oldest records of a full ring are left alone: a living process may be writing over them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightRecord:
    """One thing that was noted."""

    time: float
    """Seconds since 1970."""
    kind: RecordKind
    name: str
    """The site, phase or op; the step's number."""
    phase: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What a process was doing when it was last heard of."""

    pid: int
    started: float
    """Seconds since 1970, as all times here."""
    heartbeat: float
    """When it last noted anything."""
    num_records: int
    """How many it has noted; the ring holds the last of them."""
    step: int | None
    phase: str | None
    sites: tuple[str, ...]
    """The modules that were running, the outermost first."""
    op: str | None
    """The last op, where ops were noted."""
    is_op_done: bool
    records: tuple[FlightRecord, ...]
    """The last ones, the oldest first."""

    @property
    def site(self) -> str | None:
        """The innermost module that was running; None outside of any."""
        return self.sites[-1] if self.sites else None


def read_flight(path: Path) -> Flight:
    """Read a flight recorder's file; a `RunFolderError` says what is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, f"{error.strerror}.") from error
    if len(data) != TOTAL_BYTES:
        raise _unreadable(path, f"it has {len(data)} bytes instead of {TOTAL_BYTES}.")
    words = memoryview(data)[:NAMES_OFFSET].cast("q")
    if words[MAGIC_WORD] != MAGIC:
        raise _unreadable(path, "it is no flight recorder's file, or was written on a machine of another byte order.")
    if words[VERSION_WORD] != FLIGHT_VERSION:
        raise _unreadable(path, f"its version is {words[VERSION_WORD]}, and {FLIGHT_VERSION} is known.")
    names = _names(data[NAMES_OFFSET:], words[NAMES_USED])
    records = _records(words, names)
    op = words[OP]
    stack = words[STACK : STACK + min(max(words[DEPTH], 0), MAX_DEPTH)]
    started = words[UNIX_NS] / 1e9
    return Flight(
        pid=words[PID],
        started=started,
        heartbeat=records[-1].time if records else started,
        num_records=words[COUNT],
        step=None if words[STEP] < 0 else words[STEP],
        phase=_name(names, words[PHASE]),
        sites=tuple(_name(names, code) or "?" for code in stack),
        op=_name(names, op >> 1),
        is_op_done=bool(op & 1),
        records=records,
    )


def read_heartbeat(path: Path) -> int:
    """Return how many records a process has noted so far: it moves as long as the process gets on."""
    with path.open("rb") as file:
        return int.from_bytes(os.pread(file.fileno(), 8, 8 * COUNT), "little")


def _records(words: memoryview, names: list[str]) -> tuple[FlightRecord, ...]:
    count = words[COUNT]
    offset = words[UNIX_NS] - words[MONOTONIC_NS]
    found = []
    for number in range(max(1, count - NUM_RECORDS + 1 + _BEING_OVERWRITTEN), count + 1):
        slot = RING + 2 * (number % NUM_RECORDS)
        when, what = words[slot], words[slot + 1]
        kind = KINDS[what >> 32 & 0xFF]
        code = what & 0xFFFFFFFF
        name = str(code) if kind == "step" else _name(names, code) or "?"
        phase = _name(names, what >> 40)
        found.append(FlightRecord(time=(when + offset) / 1e9, kind=kind, name=name, phase=phase))
    return tuple(found)


def _names(data: bytes, used: int) -> list[str]:
    found, place = [], 0
    while place < min(used, NAMES_BYTES):
        length = int.from_bytes(data[place : place + 2], "little")
        found.append(data[place + 2 : place + 2 + length].decode(errors="replace"))
        place += 2 + length
    return found


def _name(names: list[str], code: int) -> str | None:
    return names[code - 1] if 1 <= code <= len(names) else None


def _unreadable(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=why, fix="take the file from a copy of the run.")
