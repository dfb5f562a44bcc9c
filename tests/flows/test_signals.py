"""Signals reach a watched script exactly as they reach a bare one, and end it in the same way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roundoff.runs import Run

TRAIN = """
import os, signal, sys, time
counts = {}
def handler(number, frame):
    counts[number] = counts.get(number, 0) + 1
    print("got", signal.Signals(number).name, flush=True)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), handler)
print("ready", os.getpid(), flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and "go" not in os.listdir("."):
    time.sleep(0.05)
print("counts", sorted(counts.values()), flush=True)
"""


class Started:
    def __init__(self, folder: Path, *handled: str, watched: bool) -> None:
        (folder / "train.py").write_text(TRAIN)
        prefix = ["-m", "roundoff", "run"] if watched else []
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, *prefix, "train.py", *handled], cwd=folder, process_group=0, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.script = int(self.process.stdout.readline().split()[1])

    def end(self) -> tuple[int, str]:
        (self.folder / "go").touch()
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGTSTP", "SIGCONT", "SIGALRM"])
def test_a_handler_runs_once_for_a_signal_to_the_group_and_once_for_one_to_the_process(
    tmp_path: Path, name: str, watched: bool
) -> None:
    number = getattr(signal, name)
    started = Started(tmp_path, name, watched=watched)
    os.killpg(started.process.pid, number)
    assert started.process.stdout is not None
    assert started.process.stdout.readline() == f"got {name}\n"
    time.sleep(0.3)
    started.process.send_signal(number)
    assert started.process.stdout.readline() == f"got {name}\n"
    time.sleep(0.3)
    assert started.end() == (0, "counts [2]\n")


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGQUIT"])
def test_a_signal_without_a_handler_ends_both_in_the_same_way(tmp_path: Path, name: str, watched: bool) -> None:
    started = Started(tmp_path, watched=watched)
    time.sleep(0.2)
    started.process.send_signal(getattr(signal, name))
    started.process.communicate(timeout=60)
    assert started.process.returncode == -getattr(signal, name)


@pytest.mark.parametrize("watched", [False, True])
def test_a_script_is_suspended_and_resumed_with_its_job(tmp_path: Path, watched: bool) -> None:
    started = Started(tmp_path, watched=watched)
    job = [started.process.pid, started.script]
    for send in (started.process.send_signal, lambda number: os.killpg(started.process.pid, number)):
        send(signal.SIGTSTP)
        wait_for(lambda: all(state(process) == "T" for process in job))
        send(signal.SIGCONT)
        wait_for(lambda: all(state(process) != "T" for process in job))
    assert started.end() == (0, "counts []\n")


def test_a_job_is_suspended_also_when_its_script_was_before(tmp_path: Path) -> None:
    started = Started(tmp_path, watched=True)
    os.kill(started.script, signal.SIGTSTP)
    wait_for(lambda: state(started.script) == "T")
    time.sleep(1.5)  # roundoff has seen it
    assert state(started.process.pid) != "T"
    started.process.send_signal(signal.SIGTSTP)
    wait_for(lambda: state(started.process.pid) == "T")
    started.process.send_signal(signal.SIGCONT)
    wait_for(lambda: "T" not in (state(started.process.pid), state(started.script)))
    assert started.end() == (0, "counts []\n")


def test_a_script_goes_on_where_only_roundoff_itself_was_stopped_for_a_while(tmp_path: Path) -> None:
    started = Started(tmp_path, watched=True)
    for _ in range(3):
        started.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: state(started.process.pid) == "T")
        time.sleep(1.5)  # longer than it waits for a signal
        started.process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert started.end() == (0, "counts []\n")


DIAGNOSING = """
import signal, sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), lambda *_: print("the script's handler", flush=True))
import roundoff.diagnose.diagnosis as diagnosis, time
order, seconds = diagnosis.order_findings, float(sys.argv[1])
diagnosis.order_findings = lambda *args, **settings: (
    print("diagnosing", flush=True), time.sleep(seconds), order(*args, **settings)
)[-1]
raise SystemExit(3)
"""


def diagnosing(folder: Path, seconds: float, **environment: str) -> subprocess.Popen[str]:
    """Start a training and return when its diagnosis has begun, which takes this long."""
    (folder / "train.py").write_text(DIAGNOSING)
    process = subprocess.Popen(
        [sys.executable, "-m", "roundoff", "run", "train.py", str(seconds)], cwd=folder, process_group=0, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "diagnosing\n"
    return process


@pytest.mark.parametrize(
    ("name", "to_group"), [("SIGINT", True), ("SIGINT", False), ("SIGTERM", True), ("SIGTERM", False), ("SIGHUP", True)]
)
def test_a_signal_during_the_diagnosis_ends_it_at_once_with_the_scripts_code(
    tmp_path: Path, name: str, to_group: bool
) -> None:
    process = diagnosing(tmp_path, 60)
    began = time.monotonic()
    (os.killpg if to_group else os.kill)(process.pid, getattr(signal, name))
    output, errors = process.communicate(timeout=50)
    assert (process.returncode, output) == (3, "")
    assert time.monotonic() - began < 30
    assert errors.splitlines()[-1] == "roundoff: interrupted; what was seen is kept in runs/train-1"
    assert "watched" not in errors  # no second diagnosis
    ending = Run.open(tmp_path / "runs" / "train-1").ending()
    assert ending is not None
    assert (ending.exit_code, ending.forwarded_signal, ending.was_over) == (3, None, True)


def test_the_verdict_of_several_ranks_is_printed_once_though_their_launcher_ends_them_meanwhile(tmp_path: Path) -> None:
    process = diagnosing(tmp_path, 3, RANK="0", WORLD_SIZE="2")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=100)
    assert (process.returncode, output.replace("diagnosing\n", "")) == (3, "")
    assert errors.count("watched 3 steps") == 1
