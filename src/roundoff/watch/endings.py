"""The endings of the other ranks of a launch."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from roundoff.runs.folder import ending_path


def wait_for_endings(folder: Path, *, ranks: Iterable[int], seconds: float = 15.0) -> bool:
    """Wait until the endings of these ranks are in the run folder, and say whether they are.

    Ranks end at different times, and hang together, one because of itself and the others because they wait for it;
    each is looked at by its own parent, which takes its stacks first.
    """
    end = time.monotonic() + seconds
    missing = list(ranks)
    while missing := [rank for rank in missing if not ending_path(folder, rank=rank).exists()]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return not missing
