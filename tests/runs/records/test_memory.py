"""Looks at growing memory, written and read back."""

from pathlib import Path

from roundoff.runs import GrownObject, MemoryLook
from tests.run_folders import write_run

LOSSES = GrownObject(name="losses", source=None, kind="list", num=40, num_more=8, has_graph=True)


def test_looks_come_back_as_they_were(tmp_path: Path):
    look = MemoryLook(step=40, rss_bytes=2**30, start_step=20, start_bytes=2**29, keepers=(LOSSES,))
    run = write_run(tmp_path / "a", look)
    assert run.memory() == [look]
    assert run.memory(rank=1) == []
