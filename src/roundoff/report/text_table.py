"""Tables as text that fits the screen: with a rule under the header on a terminal, plain in a pipe."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

PIPE_WIDTH = 100

_GAP = "  "
_MIN_WIDTH = 8
"""Columns of words are not cut below this many characters."""

Line = tuple[str, ...]


def text_table(lines: Sequence[Line], *, left: Collection[str], ruled: bool, width: int | None = None) -> str:
    """Lay out lines under the first one, their header; columns named in `left` are words, all others numbers.

    Words that do not fit into `width` are cut, in the widest column first; numbers never are. Without a `width` it is
    that of the terminal for a ruled table, and 100 otherwise.

    >>> print(text_table([("recipe", "top-1", "note"), ("O2", "0.97", "fine")], left={"recipe", "note"}, ruled=False))
    recipe  top-1  note
    O2       0.97  fine
    """
    if width is None:
        width = shutil.get_terminal_size().columns if ruled else PIPE_WIDTH
    header = lines[0]
    sizes = _sizes(lines, left=left, width=width)
    texts = [_GAP.join(map(_fit_cell, line, sizes, (name in left for name in header))).rstrip() for line in lines]
    rule = [_GAP.join("─" * size for size in sizes)] if ruled else []
    return "\n".join([texts[0], *rule, *texts[1:]])


def _sizes(lines: Sequence[Line], *, left: Collection[str], width: int) -> list[int]:
    """Return the width of each column: what it needs, or as much as there is."""
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    least = {place: max(len(name), _MIN_WIDTH) for place, name in enumerate(lines[0]) if name in left}
    while sum(sizes) + len(_GAP) * (len(sizes) - 1) > width:
        wide = [place for place in least if sizes[place] > least[place]]
        if not wide:
            break
        # Of equally wide ones the last: it is the note, and the others tell the rows apart.
        sizes[max(wide, key=lambda place: (sizes[place], place))] -= 1
    return sizes


def _fit_cell(cell: str, size: int, is_left: bool) -> str:
    if len(cell) > size:
        cell = cell[: size - 1] + "…"
    return cell.ljust(size) if is_left else cell.rjust(size)
