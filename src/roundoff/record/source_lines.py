"""Source lines: where in the user's code an op was called."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from roundoff.notebook_cells import cell_name

_TORCH = find_spec("torch")  # not imported: a path is shortened without it
_HERE = Path(__file__).parent
_OUR_ROOMS = tuple(_HERE.parent / room for room in ("record", "replay", "watch", "precision", "switches"))
_TORCH_FOLDERS = (_TORCH.submodule_search_locations or ()) if _TORCH else ()
_NOT_THE_USERS = (
    *(str(folder) + os.sep for folder in (*_TORCH_FOLDERS, *_OUR_ROOMS)),
    str(_HERE.parent / "progress.py"),  # a thread of it runs during replays
)
_STDLIB = sysconfig.get_path("stdlib") + os.sep


class Sources:
    """Gives each source line a number; `lines` holds them as `model.py:41`."""

    def __init__(self, *, stands_in_for: str | None = None) -> None:
        self._stands_in_for = stands_in_for
        """A file of ours that repeats the user's calls: the search ends there and returns `stand_in`."""
        self.lines: list[str] = []
        self.stand_in: tuple[str, int] | None = None
        """The file and line of the user's call that is being repeated: the stack does not show it."""
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
    """Return whether a file is the user's: not torch's, Python's, or in one of our rooms that call the user's code."""
    if filename.startswith((*_NOT_THE_USERS, "<frozen")):
        return False
    # site-packages may be inside the folder of the standard library
    return not filename.startswith(_STDLIB) or "-packages" in filename


def shown_path(filename: str) -> str:
    """Shorten a path: relative to the current folder or to site-packages, otherwise its last two parts.

    The code of a notebook's cell has the name of the cell, `In[3]`.
    """
    if (cell := cell_name(filename)) is not None:
        return cell
    if filename.startswith("<"):
        return filename
    path = Path(filename).resolve()
    roots = [*map(Path, site.getsitepackages()), Path(sysconfig.get_path("stdlib")), Path.cwd()]
    for root in roots:
        if path.is_relative_to(root.resolve()):
            return str(path.relative_to(root.resolve()))
    return "/".join(path.parts[-2:])
