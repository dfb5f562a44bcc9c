"""The endings of the other ranks of a launch."""

from __future__ import annotations

import time
from pathlib import Path

from roundoff.runs.folder import ending_path


def wait_for_endings(folder: Path, *, num_ranks: int, seconds: float = 15.0) -> bool:
    """Wait until every rank's ending is in the run folder, and say whether they are.

    Ranks hang together, one because of itself and the others because they wait for it; each is looked at by its own
    parent, which takes its stacks first.
    """
    end = time.monotonic() + seconds
    while not (there := all(ending_path(folder, rank=rank).exists() for rank in range(num_ranks))):
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return there
