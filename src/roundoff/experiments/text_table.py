"""Cells as text that fits a screen: ruled on a terminal, plain in a pipe."""

from __future__ import annotations

from collections.abc import Collection, Sequence

WIDTH = 100

Line = tuple[str, ...]


def text_table(lines: Sequence[Line], *, left: Collection[str], ruled: bool, width: int = WIDTH) -> str:
    """Lay out lines under the first one, their header; columns named in `left` are words, all others numbers.

    What does not fit into `width` is cut from the last column; neither a pipe nor a terminal gets a longer line
    unless all the other columns need it.

    >>> print(text_table([("recipe", "top-1", "note"), ("O2", "0.97", "fine")], left={"recipe", "note"}, ruled=False))
    recipe  top-1  note
    O2       0.97  fine
    """
    cut = _cut_last(lines, width=width)
    if ruled:
        return _ruled(cut, left=left, width=width)
    widths = _widths(cut)
    return "\n".join(
        "  ".join(
            cell.ljust(size) if name in left else cell.rjust(size)
            for cell, size, name in zip(line, widths, cut[0], strict=True)
        ).rstrip()
        for line in cut
    )


def _cut_last(lines: Sequence[Line], *, width: int) -> list[Line]:
    room = max(len(lines[0][-1]), width - sum(size + 2 for size in _widths(lines)[:-1]))
    return [(*line[:-1], line[-1] if len(line[-1]) <= room else line[-1][: room - 1] + "…") for line in lines]


def _widths(lines: Sequence[Line]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _ruled(lines: Sequence[Line], *, left: Collection[str], width: int) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in lines[0]:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for line in lines[1:]:
        table.add_row(*line)
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
