"""Opens a checkpoint of any framework, told by its content."""

from __future__ import annotations

from pathlib import Path

from roundoff.checkpoints.checkpoint import Checkpoint
from roundoff.errors import CheckpointError


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Open a checkpoint by its content, whatever its suffix says; a `CheckpointError` if it is none.

    Nothing in the file is executed, and no more memory is taken than its size allows.
    """
    raise CheckpointError.explain(f"'{path}' is no checkpoint.", why="no format is known.")
