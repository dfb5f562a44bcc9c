import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundoff.runs import Run

SCRIPT = Path(__file__).with_name("writing_until_killed.py")
NUM_ROWS = 300


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SCRIPT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def write_and_kill(parent: subprocess.Popen[str], folder: Path, *, seconds: float, early: bool) -> int:
    """Let a run be written, and kill its writer some time after it began, or after its first flush unless `early`.

    Returns how often it had flushed.
    """
    print(folder, file=parent.stdin, flush=True)
    child = int(parent.stdout.readline())
    flushed = Path(f"{folder}.flushed")
    deadline = time.monotonic() + 30
    while not early and not num_bytes(flushed) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert parent.stdout.readline() == "dead\n"
    return num_bytes(flushed)


def num_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check(folder: Path, num_flushed: int) -> None:
    if num_flushed == 0 and not (folder / "run.json").exists():
        return  # it died before there was a run
    run = Run.open(folder)
    rows_of_step = [run.events(step=step).num_rows for step in range(num_flushed + 1)]
    assert rows_of_step[:-1] == [NUM_ROWS] * num_flushed
    assert rows_of_step[-1] in (0, NUM_ROWS)
    assert run.hashes()["step"].to_list()[:num_flushed] == list(range(num_flushed))
    assert [metrics.step for metrics in run.metrics()][:num_flushed] == list(range(num_flushed))
    assert [call.step for call in run.calls()][:num_flushed] == list(range(num_flushed))
    assert list(run.info.notes)[:num_flushed] == [f"step {step}" for step in range(num_flushed)]
    for _, step in run.tensor_steps:
        assert (run.tensor_file(step)["a"] == step).all()
    assert len(run.tensor_steps) >= num_flushed


def kill_many(parent: subprocess.Popen[str], folder: Path, count: int) -> None:
    moments = random.Random(0)
    for number in range(count):
        run_folder = folder / f"run-{number}"
        early = number % 4 == 3
        seconds = moments.uniform(0, 0.02 if early else 0.1)
        check(run_folder, write_and_kill(parent, run_folder, seconds=seconds, early=early))


def test_everything_flushed_survives_the_death_of_its_writer(parent: subprocess.Popen[str], tmp_path: Path):
    kill_many(parent, tmp_path, 5)


@pytest.mark.slow
def test_everything_flushed_survives_forty_deaths(parent: subprocess.Popen[str], tmp_path: Path):
    kill_many(parent, tmp_path, 40)
