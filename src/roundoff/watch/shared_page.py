"""A page of memory that a watched process and the one that waits for it share."""

from __future__ import annotations

import ctypes
import json
import mmap
from dataclasses import asdict, dataclass
from pathlib import Path

_SIGNAL, _THREAD, _IS_ANSWERED, _IS_CLOSED, _LENGTH = range(5)
"""Words of 32 bits; csrc/crash.cpp has the same."""
_TEXT = 64
_SIZE = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What the child tells its parent about the run once it has made its folder."""

    folder: str
    """As a whole path: the script may change its folder."""
    rank: int
    is_sync: bool = False
    has_ops: bool = False

    @property
    def path(self) -> Path:
        """The run folder."""
        return Path(self.folder)


class SharedPage:
    """Holds what child and parent must know of each other even when one of them is crashing."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, _SIZE)
        self._words = memoryview(self.memory).cast("i")

    @property
    def address(self) -> int:
        """Where the page is in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def tell(self, where: Where) -> None:
        """Let the parent know of the run folder; a path too long for the page is not told."""
        text = json.dumps(asdict(where)).encode()
        if len(text) <= _SIZE - _TEXT:
            self.memory[_TEXT : _TEXT + len(text)] = text
            self._words[_LENGTH] = len(text)

    def where(self) -> Where | None:
        """Return what the child has told; None before it has."""
        length = self._words[_LENGTH]
        return Where(**json.loads(self.memory[_TEXT : _TEXT + length])) if length else None

    def crash(self) -> tuple[int, int] | None:
        """Return signal and thread of a child that is crashing and waits for an answer."""
        if not self._words[_SIGNAL] or self._words[_IS_ANSWERED]:
            return None
        return self._words[_SIGNAL], self._words[_THREAD]

    def answer(self) -> None:
        """Let the crashing child go."""
        self._words[_IS_ANSWERED] = 1

    @property
    def is_closed(self) -> bool:
        """Whether the child has said all there is to say about the run; what comes now is its end."""
        return bool(self._words[_IS_CLOSED])

    def close(self) -> None:
        """Note that the child has said all there is to say."""
        self._words[_IS_CLOSED] = 1
