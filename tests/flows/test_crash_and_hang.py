"""J6, as a user types it: the script crashes, is killed or hangs, and the verdict says where."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.runs import Run

TRAIN = """\
import ctypes, os, sys
import torch
from torch import nn

class Planted(nn.Module):
    def forward(self, x):
        if step == 2:
            if sys.argv[1] == "crash":
                ctypes.string_at(0)  # planted
            if sys.argv[1] == "kill":
                os.kill(os.getpid(), 9)
        return x.relu()

model = nn.Sequential(nn.Linear(4, 4), Planted(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).pow(2).mean().backward()
    optimizer.step()
"""

TWO_RANKS = """\
import time
import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).pow(2).mean()
    while step == 2 and dist.get_rank() == 1:
        time.sleep(0.1)  # planted
    loss.backward()
    optimizer.step()
"""


def run_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": "/nowhere"}  # without gdb, which takes seconds
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def line_of(script: str) -> int:
    return next(number for number, line in enumerate(script.splitlines(), 1) if "# planted" in line)


def test_a_crash_is_reported_with_step_site_and_line(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN)
    answer = run_in(tmp_path, "-m", "roundoff", "run", "train.py", "crash")
    assert answer.returncode == -11
    assert re.search(rf"^native-crash   1   step 2, forward +train\.py:{line_of(TRAIN)}$", answer.stderr, re.MULTILINE)
    assert "The process crashed with SIGSEGV" in answer.stderr
    again = run_in(tmp_path, "-m", "roundoff", "diagnose", "runs/train-1")
    assert again.returncode == 1
    assert "native-crash   1   step 2, forward" in again.stdout


@pytest.mark.slow
def test_a_kill_is_reported_and_memory_is_not_blamed_without_evidence(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN)
    answer = run_in(tmp_path, "-m", "roundoff", "run", "train.py", "kill")
    assert answer.returncode == -9
    assert "killed   1   step 2, forward" in answer.stderr
    assert "out of memory" not in answer.stderr


@pytest.mark.slow
def test_nothing_is_reported_of_a_healthy_process(tmp_path: Path):
    (tmp_path / "train.py").write_text(TRAIN)
    answer = run_in(tmp_path, "-m", "roundoff", "run", "--hang-after", "30", "train.py", "nothing")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr.startswith("Nothing found; watched 4 steps")


@pytest.mark.slow
def test_of_two_ranks_that_hang_the_one_is_named_that_the_other_waits_for(tmp_path: Path):
    (tmp_path / "train.py").write_text(TWO_RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run_in(tmp_path, *launch, "-m", "roundoff", "run", "--hang-after", "8", "--on-anomaly", "stop", "train.py")
    run = Run.open(tmp_path / "runs" / "train-1")
    findings = run.findings()
    assert findings is not None
    first = findings[0]
    assert (first.rule, first.rank, first.step) == ("hang", 1, 2)
    assert first.source == f"train.py:{line_of(TWO_RANKS)}"
    assert [(related.rule, related.rank) for related in first.related] == [("hang", 0)]
