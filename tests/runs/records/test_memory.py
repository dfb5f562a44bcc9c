"""Looks at growing memory, written and read back."""

from pathlib import Path

from roundoff.runs import MemoryLook
from tests.run_folders import write_run


def test_looks_come_back_as_they_were(tmp_path: Path):
    look = MemoryLook(
        step=40, rss_bytes=2**30, start_step=20, start_bytes=2**29, keepers=({"name": "losses", "num": 40},)
    )
    run = write_run(tmp_path / "a", look)
    assert run.memory() == [look]
    assert run.memory(rank=1) == []
