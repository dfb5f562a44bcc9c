"""What a stream can show: how wide its lines are, the characters of curves, colours, and links to source lines."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO
from urllib.parse import quote

MAX_COLUMNS = 100
_MIN_COLUMNS = 40
_DRAWN = "─…█"

Style = Literal["error", "warning", "good", "marked", "label", "code", "faint"]
_CODES: dict[Style, str] = {
    "error": "1;31",
    "warning": "1;33",
    "good": "32",
    "marked": "1",
    "label": "1;36",
    "code": "32",
    "faint": "2",
}
"""What each style is as an SGR sequence; of the eight colours only, which every theme makes readable."""


def escape_controls(text: str) -> str:
    r"""Show characters that a terminal would obey, or not show at all, as escapes; line breaks and tabs stay.

    Names in files may hold them, to change what the screen says.

    >>> print(escape_controls("fc\x1b[2J\u202e.weight"))
    fc\x1b[2J\u202e.weight
    """
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def columns() -> int:
    """Return how wide text may be: the width of the terminal, or COLUMNS, at most 100; in a pipe 100."""
    return max(_MIN_COLUMNS, min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns))


def can_draw(stream: TextIO) -> bool:
    """Whether a stream knows the characters that lines and curves are drawn with."""
    try:
        _DRAWN.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def has_colour(stream: TextIO) -> bool:
    """Whether to write colours to a stream: NO_COLOR forbids and FORCE_COLOR demands them; else it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "") not in ("", "0"):
        return True
    return _is_terminal(stream)


def _is_terminal(stream: TextIO) -> bool:
    return os.environ.get("TERM") != "dumb" and hasattr(stream, "isatty") and stream.isatty()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    r"""Makes a piece of a line what a stream shows: without control characters, in a style, as a link.

    >>> Paint()("fix", "label"), Paint(colours=True)("fix\x1b", "label")
    ('fix', '\x1b[1;36mfix\\x1b\x1b[0m')
    """

    colours: bool = False
    links: bool = False
    """Whether a terminal gets links that it opens; others show the path and the line, which editors recognize."""

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        """Return what a stream shows."""
        colours = has_colour(stream)
        return cls(colours=colours, links=colours and _is_terminal(stream))

    def __call__(self, text: str, style: Style | None = None, *, link: Path | None = None, line: int = 1) -> str:
        """Return a text, in a style, as a link to a line of a file."""
        shown = escape_controls(text)
        if self.colours and style is not None and shown.strip():
            shown = f"\x1b[{_CODES[style]}m{shown}\x1b[0m"
        if self.links and link is not None:
            shown = f"\x1b]8;;file://{quote(bytes(link))}#{line}\x1b\\{shown}\x1b]8;;\x1b\\"
        return shown


PLAIN = Paint()
"""For a stream that shows text only, and for files."""
