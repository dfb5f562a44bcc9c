"""The user's source lines: where an op was called, and calls made in place of a line, so that warnings name it."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

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


_NAME = "<called by roundoff>"
_TEMPLATE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_ROOMS = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("record", "watch", "replay"))
_PASSING = (
    *_ROOMS,
    *(os.path.join(folder, part) for folder in _TORCH_FOLDERS for part in ("overrides.py", f"_dynamo{os.sep}")),
)
"""Files through which torch reports a function to a mode."""


# A warning belongs to a line a few calls up the stack. It is shown once for each such line, and whether it is shown at
# all depends on the module of that line. With a frame of ours there, it would have another place, and warnings of
# different lines would count as one.
def call_from(frame: FrameType | None, function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a function from a frame that has the file, the line and the globals of another frame.

    That frame is not in the traceback of an exception: a script may look for its own frames there.
    """
    if frame is None or frame.f_lineno is None:  # generated code may have no lines
        return function(*args, **(kwargs or {}))
    filename, line = frame.f_code.co_filename, frame.f_lineno
    call = FunctionType(_code_at(filename, line), frame.f_globals)
    try:
        return call(function, args, kwargs or {})
    except BaseException as error:
        ours = error.__traceback__
        made = None if ours is None else ours.tb_next
        raise error.with_traceback(None if made is None else made.tb_next)  # noqa: B904  # it is the same exception


def frame_that_called(function: Any) -> FrameType | None:
    """Return the frame that called a function which torch reports to a mode of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_passing(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None and frame.f_code is getattr(function, "__code__", None):
        return frame.f_back  # written in Python, it checks whether there is a mode
    return frame


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, and without those that led to a call in place of its caller."""
    kept: list[TracebackType] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if code is call_from.__code__ and "line" in trace.tb_frame.f_locals:
            place = trace.tb_frame.f_locals["filename"], trace.tb_frame.f_locals["line"]
            while kept and (kept[-1].tb_frame.f_code.co_filename, kept[-1].tb_lineno) != place:
                kept.pop()
        elif not code.co_filename.startswith(("<frozen runpy>", *_ROOMS)):
            kept.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for each in reversed(kept):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


@functools.lru_cache(maxsize=4096)
def _code_at(filename: str, line: int) -> CodeType:
    from roundoff.torch_private import skip_by_compiler

    code = _TEMPLATE.replace(co_filename=filename, co_firstlineno=line, co_name=_NAME)
    skip = skip_by_compiler()
    if skip is not None:
        skip(code)
    return code


@functools.cache
def _is_passing(filename: str) -> bool:
    return filename.startswith(_PASSING)
