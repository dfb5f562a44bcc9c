"""What the terminal can show: its width, and which characters."""

from __future__ import annotations

import codecs
import shutil
from io import TextIOWrapper
from typing import TextIO

import click

from roundoff.words import escape_controls

MAX_COLUMNS = 100
_MIN_COLUMNS = 40
_DRAWN = "─…█"
_PLAIN = str.maketrans("─…▁▂▃▄▅▆▇█━", "-~_.,:-=+#-")
"""ASCII replacements for the characters that curves and rules are drawn with."""
_ERRORS = "roundoff.plain"


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Print text; control characters, which names from files may hold, are shown and not sent to the terminal."""
    click.echo(escape_controls(str(text)), err=err, nl=nl)


def columns() -> int:
    """Return how wide text may be: the width of the terminal, or COLUMNS, at most 100; in a pipe 100."""
    return max(_MIN_COLUMNS, min(MAX_COLUMNS, shutil.get_terminal_size((MAX_COLUMNS, 24)).columns))


def can_draw(stream: TextIO) -> bool:
    """Whether a stream knows the characters that lines and curves are drawn with."""
    try:
        _DRAWN.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show_plainly(stream: TextIO) -> None:
    """Let a stream that does not know a character show a plain one in its place, where it would raise an error."""
    if isinstance(stream, TextIOWrapper) and not can_draw(stream):
        codecs.register_error(_ERRORS, _replace_unknown)
        stream.reconfigure(errors=_ERRORS)


def _replace_unknown(error: UnicodeError) -> tuple[str, int]:
    """Return what to write for characters that an encoding does not know, and where to continue."""
    assert isinstance(error, UnicodeEncodeError)
    unknown = error.object[error.start : error.end].translate(_PLAIN)
    return unknown.encode("ascii", "replace").decode("ascii"), error.end
