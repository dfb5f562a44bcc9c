import threading
from pathlib import Path

from roundoff.runs import Ending
from roundoff.watch.process.child_monitor import wait_for_endings


def test_waits_until_every_rank_has_one(tmp_path: Path):
    Ending(pid=1).write(tmp_path, rank=0)
    later = threading.Timer(0.3, lambda: Ending(pid=2).write(tmp_path, rank=1))
    later.start()
    assert wait_for_endings(tmp_path, ranks=(0, 1), seconds=5)
    later.join(timeout=300)


def test_does_not_wait_for_ever(tmp_path: Path):
    Ending(pid=1).write(tmp_path, rank=0)
    assert not wait_for_endings(tmp_path, ranks=(0, 1), seconds=0.2)


def test_a_single_process_does_not_wait(tmp_path: Path):
    Ending(pid=1).write(tmp_path, rank=0)
    assert wait_for_endings(tmp_path, ranks=(0,), seconds=0)
