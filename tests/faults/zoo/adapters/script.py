"""Runs the script that is named on the command line, as Python does; every adapter does so under its own tool."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def run_script() -> None:
    """Run the script in the module `__main__`, with the arguments that follow its name."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
