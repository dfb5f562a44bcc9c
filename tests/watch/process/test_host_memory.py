import mmap
import os
import subprocess
import sys

from roundoff.watch.process.host_memory import read_memory


def test_a_process_that_takes_more_memory_is_seen_to_hold_it():
    before = read_memory(os.getpid()).rss_bytes
    taken = mmap.mmap(-1, 64 * 2**20)  # not from what the process has freed before
    taken.write(os.urandom(1) * (64 * 2**20))
    after = read_memory(os.getpid()).rss_bytes
    assert before is not None
    assert after is not None
    assert after - before > 50 * 2**20
    taken.close()


def test_what_is_left_is_less_than_all():
    memory = read_memory(os.getpid())
    assert memory.available_bytes is not None
    assert memory.total_bytes is not None
    assert 0 < memory.available_bytes < memory.total_bytes


def test_a_process_that_has_ended_holds_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=300)
    assert read_memory(process.pid).rss_bytes is None
