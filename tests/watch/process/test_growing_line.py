"""The line that makes a variable grow is found in the source."""

from __future__ import annotations

import linecache
import sys

import pytest

from roundoff.watch.process.variables import NamedObject, growing_line


@pytest.mark.parametrize(
    ("line", "anchor", "is_found"),
    [
        ("x.append(loss)", "x", True),
        ("x += loss", "x", True),
        ("x = x + loss", "x", True),
        ("x = loss + x * 2", "x", True),
        ("x[step] = loss", "x", True),
        ("x['loss'].append(loss)", "x", True),
        ("x.setdefault('loss', []).append(loss)", "x", True),
        ("self.x.append(loss)", "x", True),
        ("x = loss", "x", False),
        ("print(x)", "x", False),
        ("y.append(x)", "x", False),
    ],
)
def test_lines_that_add_to_a_name(line: str, anchor: str, is_found: bool) -> None:
    text = f"step = 1\ndef train(x, y, loss, self):\n    {line}\n"
    filename = "<planted>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, object] = {"sys": sys}
    exec(compile(text.replace(line, "return sys._getframe()"), filename, "exec"), scope)
    frame = scope["train"](1, 2, 3, 4)
    named = NamedObject(name=anchor, value=None, anchor=anchor, frame=frame)
    assert growing_line(named, [frame]) == (f"{filename}:3" if is_found else None)


def test_a_file_that_cannot_be_read_has_no_lines() -> None:
    linecache.cache["<broken>"] = (1, None, ["def (\n"], "<broken>")
    code = compile("import sys; frame = sys._getframe()", "<broken>", "exec")
    scope: dict[str, object] = {}
    exec(code, scope)
    named = NamedObject(name="x", value=None, anchor="x", frame=scope["frame"])
    assert growing_line(named, []) is None
