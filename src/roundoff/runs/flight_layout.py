"""Where things are in the flight recorder's file: 64-bit words of the machine's own byte order, then names."""

from __future__ import annotations

from typing import Literal, TypeAlias

FLIGHT_VERSION = 1
MAGIC = int.from_bytes(b"rndflite", "little")

# One word each.
MAGIC_WORD, VERSION_WORD, PID, UNIX_NS, MONOTONIC_NS = range(5)
"""The two clocks are read together when the file is made; records have the monotonic one."""
COUNT, STEP, PHASE, DEPTH, OP, NAMES_USED = range(5, 11)
"""Records complete; step or -1; code of the phase; modules running; op (code * 2, + 1 if done); bytes of names."""

STACK = 16
MAX_DEPTH = 240
"""The codes of the sites that run, the outermost first; those beyond the depth are counted but not named."""

RING = STACK + MAX_DEPTH
NUM_RECORDS = 4096
WORDS_PER_RECORD = 2
"""When, and what: code + kind * 2**32 + phase's code * 2**40. Record n (from 1) is in slot n % NUM_RECORDS."""

NAMES_OFFSET = 8 * (RING + NUM_RECORDS * WORDS_PER_RECORD)
NAMES_BYTES = 512 * 1024
"""Each name is its length in two bytes and its UTF-8; its code is its place, counted from 1. Code 0 is no name."""
MAX_NAME_BYTES = 400

TOTAL_BYTES = NAMES_OFFSET + NAMES_BYTES

RecordKind: TypeAlias = Literal["enter", "leave", "step", "phase", "op"]
KINDS: tuple[RecordKind, ...] = ("enter", "leave", "step", "phase", "op")
