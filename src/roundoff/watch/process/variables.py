"""The names of objects in the training's own code, and the line that makes one grow."""

from __future__ import annotations

import ast
import gc
import inspect
import linecache
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType
from typing import Any

import torch

from roundoff.record.source_lines import shown_path

_MAX_VISITED = 5000
_MAX_DEPTH = 3
_OWN_REFERENCES = 3
"""References to the copy of a frame's variables: by the frame, by us, and by the call that counts them."""
_NOT_THE_USERS = tuple(str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_GROWERS = {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedObject:
    """An object and its name in the code."""

    name: str
    """`losses`, `self.history`, `log['loss']`."""
    value: Any
    anchor: str
    """The last identifier in the name, which a line that changes the object must mention."""
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


def named_objects(frames: list[FrameType]) -> Iterator[NamedObject]:
    """Yield the variables of the frames, then what those hold, a few levels deep.

    Each object is yielded once, under its shortest name.
    """
    level = [
        NamedObject(name=name, value=value, anchor=name, frame=frame)
        for frame in frames
        for name, value in (*_locals_of(frame).items(), *frame.f_globals.items())
        if name.isidentifier() and not name.startswith("__")
    ]
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        following: list[NamedObject] = []
        for named in level:
            if id(named.value) in seen or len(seen) > _MAX_VISITED or _is_foreign(named.value):
                continue
            seen.add(id(named.value))
            yield named
            following.extend(_inside(named))
        level = following


def name_from_referrers(target: Any) -> NamedObject | None:
    """Find the module or object that holds an object which no running frame leads to."""
    for holder in gc.get_referrers(target):
        for owner in (holder, *(gc.get_referrers(holder) if type(holder) is dict else ())):
            attributes = getattr(owner, "__dict__", None)
            if not isinstance(attributes, dict) or _is_ours(owner):
                continue
            for name, value in list(attributes.items()):
                if value is target:
                    of = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__
                    return NamedObject(name=f"{of}.{name}", value=target, anchor=name, owner=owner)
    return None


def _inside(named: NamedObject) -> Iterator[NamedObject]:
    value = named.value
    if isinstance(value, dict):
        for key, item in list(value.items())[:_MAX_VISITED]:
            if isinstance(key, str):
                yield NamedObject(name=f"{named.name}[{key!r}]", value=item, anchor=named.anchor, owner=named.owner,
                            frame=named.frame)  # fmt: skip
    elif isinstance(attributes := getattr(value, "__dict__", None), dict):
        for name, item in list(attributes.items()):
            yield NamedObject(name=f"{named.name}.{name}", value=item, anchor=name, owner=value)


def _is_foreign(value: Any) -> bool:
    """Return whether a value leads to nothing of the training."""
    if isinstance(value, (ModuleType, type, int, float, str, bytes, FunctionType, BuiltinFunctionType)):
        return True
    return _is_ours(value)


def _is_ours(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    return str(name).partition(".")[0] == "roundoff"


def _locals_of(frame: FrameType) -> Mapping[str, Any]:
    """Return the local variables of a frame without keeping them alive.

    Up to Python 3.12, reading `f_locals` of a function makes the frame keep a copy, which would keep tensors alive: it
    is cleared again, unless the user's code holds it, as `names = locals()` does.
    """
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    copy = frame.f_locals
    found = dict(copy)
    if is_function and type(copy) is dict and sys.getrefcount(copy) <= _OWN_REFERENCES and sys.gettrace() is None:
        copy.clear()
    return found


def growing_line(named: NamedObject, frames: list[FrameType]) -> str | None:
    """Return `train.py:12`, the first line that adds to the object; None if none is found in the source.

    `x.append(y)`, `x[key] = y`, `x += y` and `x = x + y` add to x; for an attribute, those of any object by that name.
    """
    for filename, first, last in _places(named, frames):
        for node in ast.walk(_tree(filename)):
            line = getattr(node, "lineno", 0)
            if first <= line <= last and _adds_to(node, named.anchor):
                return f"{shown_path(filename)}:{line}"
    return None


def _places(named: NamedObject, frames: list[FrameType]) -> Iterator[tuple[str, int, int]]:
    """Yield files and ranges of lines to search, the likeliest first."""
    if named.frame is not None and named.owner is None:
        lines = [line for _, _, line in named.frame.f_code.co_lines() if line]
        yield named.frame.f_code.co_filename, min(lines, default=0), max(lines, default=0)
    if named.owner is not None:
        for kind in type(named.owner).__mro__:
            filename = getattr(sys.modules.get(kind.__module__), "__file__", None)
            if filename:
                yield filename, 0, sys.maxsize
    for frame in frames:
        yield frame.f_code.co_filename, 0, sys.maxsize


def _tree(filename: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _adds_to(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Call):
        called = node.func
        return isinstance(called, ast.Attribute) and called.attr in _GROWERS and _is_about(called.value, name)
    if isinstance(node, ast.AugAssign):
        return _is_about(node.target, name)
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_about(target, name):
                return True
            if _is_about(target, name) and any(_is_about(part, name) for part in ast.walk(node.value)):
                return True
    return False


def _is_about(node: ast.AST, name: str) -> bool:
    """Return whether an expression is the name, an attribute by that name, or an entry of either."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("setdefault", "get") and _is_about(node.func.value, name)
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
