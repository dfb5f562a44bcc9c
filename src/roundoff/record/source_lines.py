"""Source lines: where in the user's code an op was called."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import torch

_HERE = Path(__file__).parent
_OUR_ROOMS = tuple(_HERE.parent / room for room in ("record", "replay", "watch", "precision", "switches"))
_OUR_FOLDERS = (Path(torch.__file__).parent, *_OUR_ROOMS)
_NOT_THE_USERS = tuple(str(folder) + os.sep for folder in _OUR_FOLDERS)
_STDLIB = sysconfig.get_path("stdlib") + os.sep


class Sources:
    """Gives each source line a number; `lines` holds them as `model.py:41`."""

    def __init__(self, *, stands_in_for: str | None = None) -> None:
        self._stands_in_for = stands_in_for
        """A file of ours that makes the user's calls again: the search ends there, with `stand_in`."""
        self.lines: list[str] = []
        self.stand_in: tuple[str, int] | None = None
        """The file and line to give where the stack shows none of the user's: a call that is made again."""
        self._codes: dict[tuple[str, int], int] = {}
        self._is_ours: dict[str, bool] = {}

    def here(self) -> int:
        """Return the innermost line of the running stack that is neither torch's nor ours; -1 if there is none."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            filename = frame.f_code.co_filename
            ours = self._is_ours.get(filename)
            if ours is None:
                ours = self._is_ours[filename] = not is_users_file(filename)
            if not ours:
                return self._code(filename, frame.f_lineno)
            if filename == self._stands_in_for:
                return -1 if self.stand_in is None else self._code(*self.stand_in)
            frame = frame.f_back
        return -1

    def _code(self, filename: str, line: int) -> int:
        known = self._codes.get((filename, line))
        if known is None:
            known = self._codes[filename, line] = len(self.lines)
            self.lines.append(f"{shown_path(filename)}:{line}")
        return known


def is_users_file(filename: str) -> bool:
    """Say whether a file is neither torch's, nor Python's, nor of a room of ours that stands around the user's code."""
    if filename.startswith((*_NOT_THE_USERS, "<frozen")):
        return False
    return not filename.startswith(_STDLIB) or "-packages" in filename  # packages may live inside the library's folder


def shown_path(filename: str) -> str:
    """Shorten a path for people: relative to the current folder or to where packages are, else its last two parts."""
    if filename.startswith("<"):
        return filename
    path = Path(filename).resolve()
    roots = [*map(Path, site.getsitepackages()), Path(sysconfig.get_path("stdlib")), Path.cwd()]
    for root in roots:
        if path.is_relative_to(root.resolve()):
            return str(path.relative_to(root.resolve()))
    return "/".join(path.parts[-2:])
