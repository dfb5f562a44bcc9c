"""A watched script ends with its own exit code, whatever was found; and silence is never sold as health."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.json_schemas import check_json
from tests.watch.script_server import Ended, ScriptServer

TRAIN = """
import os, shutil, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() * {scale}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {each_step}
{end}
"""
NAN = "(float('nan') if step == 3 else 1)"


@pytest.fixture
def run(server: ScriptServer, tmp_path: Path):
    def run_script(*options: str, scale: str = "1", each_step: str = "pass", end: str = "", text: str = TRAIN) -> Ended:
        script = tmp_path / "train.py"
        script.write_text(text.format(scale=scale, each_step=each_step, end=end) if text is TRAIN else text)
        return server.run([script], folder=tmp_path, watched=["--name", "run", *options])

    return run_script


def test_the_code_is_the_scripts_whatever_was_found(run) -> None:
    broken = run(scale=NAN)
    assert (broken.code, broken.stderr.count("Nothing found")) == (0, 0)


@pytest.mark.parametrize("code", [1, 2, 7])
def test_a_script_that_fails_ends_with_its_own_code(run, code: int) -> None:
    assert run("--fail-on", "warning", end=f"sys.exit({code})").code == code


def test_fail_on_turns_a_finding_into_1(run) -> None:
    assert run("--fail-on", "error", scale=NAN).code == 1


def test_fail_on_is_0_where_everything_was_watched_and_nothing_found(run) -> None:
    ended = run("--fail-on", "error")
    assert (ended.code, ended.stderr.split(";")[0]) == (0, "Nothing found")


def test_a_script_that_leaves_without_a_word_keeps_its_code_and_can_be_failed_on(run) -> None:
    assert run(scale=NAN, end="os._exit(0)").code == 0
    assert run("--fail-on", "error", "--runs", "more", scale=NAN, end="os._exit(0)").code == 1


def test_a_run_folder_that_was_removed_is_one_line_and_not_the_scripts_failure(run) -> None:
    ended = run(end="shutil.rmtree('runs/run')")
    assert ended.code == 0
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("roundoff: the run could not be diagnosed, so nothing is known about it: ")
    assert "Traceback" not in ended.stderr
    assert "Nothing found" not in ended.stderr
    assert run("--runs", "more", "--fail-on", "error", end="shutil.rmtree('more/run')").code == 2


def test_a_script_without_a_training_is_not_called_fine(run) -> None:
    ended = run("--json", text="print('hello')")
    assert ended.code == 0
    answer = json.loads(ended.stdout.splitlines()[-1])
    check_json("run", answer)
    assert (answer["watched"], answer["findings"]) == ("nothing", [])
    assert answer["not_watched"] == ["no training step was seen in this process"]
    ended = run("--runs", "more", "--fail-on", "error", text="print('hello')")
    assert ended.code == 2
    assert ended.stderr.splitlines()[-1] == "Nothing was watched: no training step was seen in this process."


STOPS = """if step == 2:
        from roundoff.watch.detector import AnomalyDetector
        AnomalyDetector.see_loss = None"""


def test_a_watch_that_stops_half_way_says_so_and_when(run, tmp_path: Path) -> None:
    ended = run("--fail-on", "error", each_step=STOPS)
    assert ended.code == 2
    last = ended.stderr.splitlines()[-1]
    stopped = "checks of losses, gradients and weights stopped at step 3 (TypeError: "
    assert last.startswith(f"Nothing found in the 6 steps that were watched; {stopped}")
    assert Run.open(tmp_path / "runs" / "run").gaps()[0].step == 3


def test_a_full_disk_half_way_is_said_in_the_last_line(run) -> None:
    full = "if step == 2: os.symlink('/dev/full', 'runs/run/anomalies-rank0.jsonl')"
    ended = run(each_step=f"{full}", scale=NAN)
    assert ended.code == 0
    assert "recording stopped (" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


CHILDREN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

def train(rank=0):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(24, 4))
    workers = {"num_workers": 1, "multiprocessing_context": sys.argv[1]} if rank is None else {}
    for (x,) in DataLoader(data, batch_size=4, **workers):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    if sys.argv[2] == "workers":
        train(None)
    elif sys.argv[1] == "spawn":
        torch.multiprocessing.spawn(train, nprocs=2)
    else:
        children = [torch.multiprocessing.get_context("fork").Process(target=train) for _ in range(2)]
        [child.start() for child in children]
        [child.join() for child in children]
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_that_train_are_said_not_to_be_watched(server: ScriptServer, tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(CHILDREN)
    ended = server.run([tmp_path / "train.py", method, "train"], folder=tmp_path, watched=["--fail-on", "error"])
    assert ended.code == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("Nothing was watched: no training step was seen in this process; ")
    assert last.endswith("; 2 child processes trained and were not watched.")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_are_no_trainings(server: ScriptServer, tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(CHILDREN)
    ended = server.run([tmp_path / "train.py", method, "workers"], folder=tmp_path, watched=["--fail-on", "error"])
    assert (ended.code, ended.stderr.split(";")[0]) == (0, "Nothing found"), ended.stderr


RESTARTED = """
import os, sys, torch
import torch.distributed as dist
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(3)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 4) + dist.get_rank()).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_restart_by_torchrun_goes_into_a_run_of_its_own(tmp_path: Path, named: bool) -> None:
    (tmp_path / "train.py").write_text(RESTARTED)
    name = ["--name", "run"] if named else []
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
               "--monitor-interval", "0.2", "--master-port", str(free_port()),
               "-m", "roundoff", "run", *name, "train.py"]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    runs = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert runs == (["run", "run-restart1"] if named else ["train-1", "train-2"])
    assert Run.open(tmp_path / "runs" / runs[1]).ranks == [0, 1]
    assert "already holds a run" not in ended.stderr
