import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from roundoff.experiments.engine import process_pool as pool
from roundoff.experiments.engine.process_pool import ProcessPool

WAITS_FOR_EVER = """
import pickle, sys
from roundoff.experiments.engine.process_pool import ProcessPool

if __name__ == "__main__":
    text = "(open(%r, 'w').write(str(__import__('os').getpid())), __import__('time').sleep(600))" % sys.argv[1]
    workers = ProcessPool()
    workers.start(pickle.dumps((eval, text)), log=None)
    workers.next_answer()
"""


def evaluated(text: str) -> object:
    with closing(ProcessPool()) as workers:
        number = workers.start(pickle.dumps((eval, text)), log=None)
        answered, answer = workers.next_answer()
    assert answered == number
    assert answer.packed is not None
    return pickle.loads(answer.packed)


@pytest.mark.skipif(sys.platform != "linux", reason="forks from a clean server on Linux only")
def test_processes_inherit_nothing_from_this_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "planted", "by the test", raising=False)
    assert (
        evaluated(
            "hasattr(__import__('roundoff.experiments.engine.process_pool').experiments.engine.process_pool, 'planted')"
        )
        is False
    )


def test_every_process_leads_a_group_of_its_own():
    assert evaluated("__import__('os').getpgrp() == __import__('os').getpid()") is True


def test_a_process_ends_when_its_parent_is_killed(tmp_path: Path):
    (tmp_path / "waits.py").write_text(WAITS_FOR_EVER)
    written = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, str(tmp_path / "waits.py"), str(written)])
    try:
        child = int(_wait_for(written))
        assert is_alive(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(60)
    began = time.monotonic()
    while is_alive(child):
        time.sleep(0.1)
        assert time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_process_is_noticed_though_a_process_it_has_forked_lives_on():
    forks = "__import__('os').fork() or __import__('time').sleep(60)"
    kills = "__import__('os').kill(__import__('os').getpid(), 9)"
    began = time.monotonic()
    with closing(ProcessPool()) as workers:
        workers.start(pickle.dumps((eval, f"({forks}, {kills})")), log=None)
        _, answer = workers.next_answer()
    assert time.monotonic() - began < 50
    assert (answer.has_died, answer.failure) == (True, "killed by SIGKILL (possibly out of memory)")


def test_a_process_that_has_answered_is_not_waited_for_long():
    began = time.monotonic()
    assert evaluated("__import__('threading').Thread(target=__import__('time').sleep, args=(60,)).start()") is None
    assert time.monotonic() - began < 50


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _wait_for(path: Path) -> str:
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return path.read_text()
