"""Counts, lists and lines of text as sentences write them, and tables of text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Collection, Sequence


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Write a count with its noun.

    >>> plural(1, "step"), plural(3, "step"), plural(2, "entry", "entries")
    ('1 step', '3 steps', '2 entries')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def is_or_are(count: int) -> str:
    """Return the verb that agrees with a count.

    >>> is_or_are(1), is_or_are(3)
    ('is', 'are')
    """
    return "is" if count == 1 else "are"


def join_words(words: Sequence[str], *, at_most: int | None = None) -> str:
    """Write words as a sentence lists them; those after the first `at_most` are only counted.

    >>> join_words(["embed", "head", "blocks.1"]), join_words(["a", "b", "c"], at_most=2), join_words(["a"])
    ('embed, head and blocks.1', 'a, b and 1 more', 'a')
    """
    if at_most is not None and len(words) > at_most:
        return join_names(words, at_most=at_most)
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def join_names(names: Sequence[str], *, at_most: int = 4) -> str:
    """Write names with commas between them; those after the first `at_most` are only counted.

    >>> join_names(["a", "b"]), join_names(["a", "b", "c", "d"], at_most=2)
    ('a, b', 'a, b and 2 more')
    """
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most} more"


def size_text(num_bytes: float) -> str:
    """Write a number of bytes with three digits; a kB has 1000 bytes.

    >>> size_text(12), size_text(1_234_567), size_text(2 * 10**9)
    ('12 B', '1.23 MB', '2 GB')
    """
    value, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def wrap(text: str, *, width: int = 100, first: str = "", rest: str = "") -> list[str]:
    """Break a text into lines between its words, never inside one; each of its own lines begins a new one.

    Args:
        text: what to break.
        width: of a line, its indent included.
        first: the indent of the first line.
        rest: the indent of the others.

    >>> wrap("a finding that takes two lines", width=20, first="fix  ", rest="     ")
    ['fix  a finding that', '     takes two lines']
    """
    lines: list[str] = []
    for part in text.splitlines():
        indent = rest if lines else first
        lines += textwrap.wrap(
            part,
            width,
            initial_indent=indent,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines or [first.rstrip()]


_PIPE_WIDTH = 100

_GAP = "  "
_MIN_WIDTH = 8
"""Columns of words are not cut below this many characters."""


def text_table(
    lines: Sequence[tuple[str, ...]], *, left: Collection[str], ruled: bool, width: int | None = None
) -> str:
    """Lay out lines under the first one, their header; columns named in `left` are words, all others numbers.

    Words that do not fit into `width` are cut, in the widest column first; numbers never are. Without a `width` it is
    that of the terminal for a ruled table, and 100 otherwise.

    >>> print(text_table([("recipe", "top-1", "note"), ("O2", "0.97", "fine")], left={"recipe", "note"}, ruled=False))
    recipe  top-1  note
    O2       0.97  fine
    """
    if width is None:
        width = shutil.get_terminal_size().columns if ruled else _PIPE_WIDTH
    header = lines[0]
    sizes = _sizes(lines, left=left, width=width)
    texts = [_GAP.join(map(_fit_cell, line, sizes, (name in left for name in header))).rstrip() for line in lines]
    rule = [_GAP.join("─" * size for size in sizes)] if ruled else []
    return "\n".join([texts[0], *rule, *texts[1:]])


def _sizes(lines: Sequence[tuple[str, ...]], *, left: Collection[str], width: int) -> list[int]:
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
    if len(cell) > size and " " in cell:
        cell = f"{cell[: size - 1]}…"
    elif len(cell) > size:  # a name: both ends tell it from others
        cell = f"{cell[: (size - 1) // 2]}…{cell[len(cell) - size // 2 :]}"
    return cell.ljust(size) if is_left else cell.rjust(size)
