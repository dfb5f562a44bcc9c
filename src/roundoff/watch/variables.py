"""The names by which a training's own code knows its objects."""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

_MOST_VISITED = 5000
_DEEPEST = 3
_OWN_REFERENCES = 3
"""To the copy of a frame's variables: the frame's, ours, and that of the call that counts them."""
_NOT_THE_USERS = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An object under the name that code knows it by."""

    name: str
    """`losses`, `self.history`, `log['loss']`."""
    value: Any
    anchor: str
    """The last identifier in the name, which the line that changes it must mention."""
    owner: Any = None
    """The object whose attribute it is."""
    frame: FrameType | None = None
    """The frame that it is a local variable of."""


def user_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the running frames that are neither torch's nor ours, innermost first."""
    found = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith((*_NOT_THE_USERS, "<frozen")):
            found.append(frame)
        frame = frame.f_back
    return found


def named_objects(frames: list[FrameType]) -> Iterator[Named]:
    """Give what the frames can name: their variables, then what those hold, a few levels deep.

    Each object comes once, under its shortest name.
    """
    level = [
        Named(name=name, value=value, anchor=name, frame=frame)
        for frame in frames
        for name, value in (*_locals_of(frame).items(), *frame.f_globals.items())
        if name.isidentifier() and not name.startswith("__")
    ]
    seen: set[int] = set()
    for _ in range(_DEEPEST):
        following: list[Named] = []
        for named in level:
            if id(named.value) in seen or len(seen) > _MOST_VISITED or _is_foreign(named.value):
                continue
            seen.add(id(named.value))
            yield named
            following.extend(_inside(named))
        level = following


def name_from_referrers(target: Any) -> Named | None:
    """Find the module or object that holds something which no running frame leads to."""
    for holder in gc.get_referrers(target):
        for owner in (holder, *(gc.get_referrers(holder) if type(holder) is dict else ())):
            attributes = getattr(owner, "__dict__", None)
            if not isinstance(attributes, dict) or _is_ours(owner):
                continue
            for name, value in list(attributes.items()):
                if value is target:
                    of = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__
                    return Named(name=f"{of}.{name}", value=target, anchor=name, owner=owner)
    return None


def _inside(named: Named) -> Iterator[Named]:
    value = named.value
    if isinstance(value, dict):
        for key, item in list(value.items())[:_MOST_VISITED]:
            if isinstance(key, str):
                yield Named(name=f"{named.name}[{key!r}]", value=item, anchor=named.anchor, owner=named.owner,
                            frame=named.frame)  # fmt: skip
    elif isinstance(attributes := getattr(value, "__dict__", None), dict):
        for name, item in list(attributes.items()):
            yield Named(name=f"{named.name}.{name}", value=item, anchor=name, owner=value)


def _is_foreign(value: Any) -> bool:
    """Say whether nothing of the training's is to be found behind a value."""
    if isinstance(value, (ModuleType, type, int, float, str, bytes, FunctionType, BuiltinFunctionType)):
        return True
    return _is_ours(value)


def _is_ours(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    return str(name).partition(".")[0] == "roundoff"


def _locals_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of a frame and leave nothing behind.

    Up to Python 3.12 asking a function's frame for them makes it keep a copy, which would keep tensors alive: it is
    emptied again, unless somebody uses it, as `names = locals()` does.
    """
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    copy = frame.f_locals
    found = dict(copy)
    if is_function and type(copy) is dict and sys.getrefcount(copy) <= _OWN_REFERENCES and sys.gettrace() is None:
        copy.clear()
    return found
