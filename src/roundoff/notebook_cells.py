"""The cells of a notebook: whether there are any, and which of them a piece of code is from."""

from __future__ import annotations

import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

_CELL = re.compile(r"In\[\d+\]")


def is_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    return hasattr(_shell(), "kernel")


def notebook_name() -> str:
    """Return what runs of this notebook are named after: its file, where the server says it."""
    return Path(os.environ.get("JPY_SESSION_NAME", "")).stem or "notebook"


def cell_name(filename: str) -> str | None:
    """Return what the notebook calls the cell with this code, `In[3]`; None if the code is not a cell's.

    The code of a cell has a file name that depends on its text, so a cell that was run again has its last number.
    """
    names = _cell_files()
    return f"In[{names[filename]}]" if filename in names else None


def cell_lines(name: str) -> list[str] | None:
    """Return the code of the cell that is called so, line by line; None if there is none."""
    if not _CELL.fullmatch(name):
        return None
    for filename, number in _cell_files().items():
        if name == f"In[{number}]":
            return [line.rstrip("\n") for line in linecache.getlines(filename)] or None
    return None


def _shell() -> Any:
    """Return IPython's shell; None where none runs. IPython is not imported for that."""
    interactive = sys.modules.get("IPython.core.interactiveshell")
    if interactive is None or not interactive.InteractiveShell.initialized():
        return None
    return interactive.InteractiveShell.instance()


def _cell_files() -> dict[str, int]:
    """Return the number of the cell by the name under which its code was compiled."""
    # Private, and there since IPython 8: without it, cells have the names of files.
    known: dict[str, int] = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
    return known
