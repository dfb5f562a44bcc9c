"""What the terminal can show: its width, moving bars, and which characters."""

from __future__ import annotations

import codecs
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TextIO

from roundoff.progress import is_live

MAX_COLUMNS = 100
_MIN_COLUMNS = 40
_DRAWN = "─…█"
_PLAIN = str.maketrans("─…▁▂▃▄▅▆▇█━", "-~_.,:-=+#-")
"""ASCII replacements for the characters that curves and rules are drawn with."""
_ERRORS = "roundoff.plain"


def columns() -> int:
    """Return how wide text may be: as wide as the terminal, or as COLUMNS says, but 100 at most, and so in a pipe."""
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


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what is being waited for and for how long, until the block has ended; nothing elsewhere."""
    if not is_live():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = (SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def _replace_unknown(error: UnicodeError) -> tuple[str, int]:
    """Return what to write for characters that an encoding does not know, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    unknown = error.object[error.start : error.end].translate(_PLAIN)
    return unknown.encode("ascii", "replace").decode("ascii"), error.end
