"""The line of code that makes a variable grow, read from its source."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from types import FrameType

from roundoff.record.source import shown_path
from roundoff.watch.variables import Named

_GROWERS = {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "put"}


def line_that_grows(named: Named, frames: list[FrameType]) -> str | None:
    """Return `train.py:12`, the first line that adds to the object; None if no source says so.

    `x.append(y)`, `x[key] = y`, `x += y` and `x = x + y` add to x; for an attribute, those of any object by that name.
    """
    for filename, first, last in _places(named, frames):
        for node in ast.walk(_tree(filename)):
            line = getattr(node, "lineno", 0)
            if first <= line <= last and _adds_to(node, named.anchor):
                return f"{shown_path(filename)}:{line}"
    return None


def _places(named: Named, frames: list[FrameType]) -> Iterator[tuple[str, int, int]]:
    """Give files and ranges of lines to search, the likeliest first."""
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
    """Say whether an expression is the name, an attribute by that name, or an entry of either."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("setdefault", "get") and _is_about(node.func.value, name)
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
