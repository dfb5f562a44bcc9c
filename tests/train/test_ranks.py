"""Two ranks over gloo: the same training as one, however they are launched."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from roundoff.errors import DataError, TrainError
from roundoff.runs import Metrics, Run
from roundoff.train import TrainConfig, train

SMALL = ("--epochs", "2", "--limit", "640", "--width", "8", "--threads", "1", "--json", "--timeout", "60")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(*words: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, *words, *SMALL, "--runs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    return dict(state["model"])


def kill_rank_0_in_step_2(metrics: Metrics) -> None:
    if metrics.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_two_ranks_launched_either_way_train_what_one_trains(tmp_path: Path):
    one = run("-m", "roundoff", "train", folder=tmp_path / "one")
    procs = run("-m", "roundoff", "train", "--procs", "2", folder=tmp_path / "procs")
    torchrun = run(*TORCHRUN, "-m", "roundoff", "train", folder=tmp_path / "torchrun")
    assert procs["eval_loss"] == torchrun["eval_loss"]
    assert procs["steps"] == one["steps"] == 20
    assert abs(procs["top1"] - one["top1"]) < 0.15
    assert procs["final_loss"] == pytest.approx(one["final_loss"], rel=0.2)
    runs = [Run.open(tmp_path / kind / "train-1") for kind in ("procs", "torchrun")]
    assert [(sorted(each.ranks), each.info.ranks) for each in runs] == [([0, 1], 2)] * 2


@pytest.mark.slow
def test_with_batch_norm_over_all_ranks_two_are_one_up_to_rounding(tmp_path: Path):
    one = run("-m", "roundoff", "train", folder=tmp_path / "one")
    two = run("-m", "roundoff", "train", "--procs", "2", "--sync-bn", folder=tmp_path / "two")
    assert two["final_loss"] == pytest.approx(one["final_loss"], rel=1e-2)
    first, second = (list(Run.open(tmp_path / kind / "train-1").metrics(rank=0)) for kind in ("one", "two"))
    assert first[0].grad_norm == pytest.approx(second[0].grad_norm, rel=1e-3)


@pytest.mark.slow
def test_sharded_weights_train_what_copied_ones_train_and_resume_bit_for_bit(tmp_path: Path):
    words = [sys.executable, *TORCHRUN, str(Path(__file__).parent / "sharded_trainings.py"), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for recipe in ("fp32", "O2", "fixed"):
        copied = weights_in(tmp_path / f"{recipe}-copied")
        for other in (weights_in(tmp_path / f"{recipe}-sharded"), weights_in(tmp_path / f"{recipe}-resumed")):
            assert all(torch.equal(copied[name], other[name]) for name in copied)


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_training_with_its_name():
    began = time.monotonic()
    with pytest.raises(TrainError) as caught:
        train(TrainConfig(procs=2, runs=None, timeout_seconds=60), on_step=kill_rank_0_in_step_2)
    assert str(caught.value) == (
        "Rank 0 died; the other ranks were stopped.\n  why: it was killed by SIGKILL (possibly out of memory)."
    )
    assert time.monotonic() - began < 55


@pytest.mark.slow
def test_an_error_of_a_rank_is_reported_as_if_there_were_one(tmp_path: Path):
    with pytest.raises(DataError, match="There is no folder"):
        train(TrainConfig(procs=2, runs=None, data=f"idx:{tmp_path / 'nowhere'}", timeout_seconds=60))


def test_what_cannot_be_sent_to_another_process_is_refused():
    with pytest.raises(TrainError, match="on_step must be a function at the top level of a module"):
        train(TrainConfig(procs=2, runs=None), on_step=lambda metrics: None)


def test_procs_inside_a_launcher_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TrainError) as caught:
        train(TrainConfig(procs=2, runs=None))
    assert str(caught.value) == (
        "--procs 2 cannot be used under torchrun.\n"
        "  why: torchrun has already started the ranks of this machine.\n"
        "  fix: remove --procs, or start without torchrun."
    )


def test_sharding_needs_several_ranks():
    with pytest.raises(TrainError, match=r"--fsdp needs several ranks"):
        train(TrainConfig(fsdp=True, runs=None))
