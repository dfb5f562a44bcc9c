import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roundoff.errors import ClusterError
from roundoff.experiments.engine.process_pool import Task
from roundoff.experiments.engine.ray_cluster import _call_on_machine
from roundoff.experiments.engine.scheduler import connected_to, run_tasks

ray = pytest.importorskip("ray")


def tasks(*expressions: str) -> list[Task]:
    return [Task(name=text, call=eval, argument=text) for text in expressions]


@pytest.mark.slow
def test_starts_a_cluster_where_there_is_none_and_leaves_nothing_running(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    handler = signal.getsignal(signal.SIGTERM)
    flag = tmp_path / "killed"
    # Kills what runs the task: the process of Ray, whose fork server is the parent of this one.
    parent = "int(open(f'/proc/{__import__(\"os\").getppid()}/stat').read().split()[3])"
    kill = f"(open({str(flag)!r}, 'w').write(str(__import__('os').getpid())), __import__('os').kill({parent}, 9))"
    survives = f"7 if __import__('os').path.exists({str(flag)!r}) else ({kill}, __import__('time').sleep(60))"
    with connected_to("ray"):
        assert ray.is_initialized()
        (outcome,) = run_tasks(tasks(survives), on="ray")
        assert ray.is_initialized()
        (lost,) = run_tasks(tasks(f"({kill}, __import__('time').sleep(60))"), on="ray", retries=0)
    assert not ray.is_initialized()
    assert (outcome.value, outcome.num_tries) == (7, 2)
    assert lost.failure == "its machine or worker was lost: WorkerCrashedError"
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(int(flag.read_text()))
    assert signal.getsignal(signal.SIGTERM) is handler
    assert capfd.readouterr() == ("", "")


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        time.sleep(0.1)


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ClusterError) as raised:
        run_tasks(tasks("1"), on="ray")
    assert str(raised.value) == (
        "The Ray cluster at RAY_ADDRESS='127.0.0.1:1' cannot be reached.\n"
        "  why: [Errno 111] Connection refused\n"
        "  fix: unset RAY_ADDRESS to use this machine."
    )


def test_says_what_to_install_where_there_is_no_ray(tmp_path: Path):
    (tmp_path / "ray.py").write_text("raise ImportError('not here')")
    script = tmp_path / "asks.py"
    script.write_text("from roundoff.experiments.engine.scheduler import run_tasks\nrun_tasks([None], on='ray')\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        "ClusterError: Ray is not installed.\n  why: --on ray needs it.\n  fix: pip install 'roundoff[cluster]'\n"
    )


def test_a_machine_without_the_folder_says_so(tmp_path: Path):
    answer = _call_on_machine(b"", None, tmp_path / "elsewhere")
    assert answer.failure == f"machine '{socket.gethostname()}' does not have the folder '{tmp_path / 'elsewhere'}'"
    assert not answer.has_died
