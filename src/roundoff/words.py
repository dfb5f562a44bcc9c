"""Counts, lists and lines of text as sentences write them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence


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
