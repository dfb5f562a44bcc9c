"""Looks at growing memory, written and read back."""

from pathlib import Path

from roundoff.runs import MemoryLook, Run, RunInfo, RunWriter


def test_looks_come_back_as_they_were(tmp_path: Path):
    look = MemoryLook(
        step=40, rss_bytes=2**30, start_step=20, start_bytes=2**29, keepers=({"name": "losses", "num": 40},)
    )
    with RunWriter.create(tmp_path / "a", RunInfo()) as writer:
        writer.write(look)
    assert Run.open(tmp_path / "a").memory() == [look]
    assert Run.open(tmp_path / "a").memory(rank=1) == []
