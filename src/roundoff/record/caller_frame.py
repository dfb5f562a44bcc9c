"""Makes a call in place of the code that wanted to make it, so that warnings name that code's line and not ours.

A warning belongs to a line a few calls up the stack. It is shown once for each such line, and whether it is shown at
all depends on the module of that line. With a frame of ours there, it would have another place, and warnings of
different lines would count as one.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

_NAME = "<called by roundoff>"
_TEMPLATE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_ROOMS = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("record", "watch", "replay"))
_TORCH = find_spec("torch")  # not imported: scripts are run without it too
_PASSING = (
    *_ROOMS,
    *(
        os.path.join(folder, part)
        for folder in ((_TORCH.submodule_search_locations or ()) if _TORCH else ())
        for part in ("overrides.py", f"_dynamo{os.sep}")
    ),
)
"""Files through which torch reports a function to a mode."""


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
