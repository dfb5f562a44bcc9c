"""Buffers that differ when a forward uses them are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from roundoff.diagnose.ranks.drift import buffers_that_differ
from tests.run_folders import hash_rows, losses, write_run


@pytest.mark.parametrize(("difference", "num_found"), [(1, 1), (0, 0)], ids=["differ", "agree"])
def test_buffers_are_compared_step_by_step(difference: int, num_found: int, tmp_path: Path) -> None:
    for rank in range(2):
        hashes = [(step, "buffer", "module.1.running_mean", 5 + step * difference * rank) for step in range(3)]
        run = write_run(tmp_path / "run", hash_rows(hashes), losses(1.0), rank=rank, ranks=2)
    found = buffers_that_differ(run)
    assert [(finding.rule, finding.step, finding.parameter) for finding in found] == [
        ("rank-buffers-differ", 1, "1.running_mean")
    ][:num_found]
