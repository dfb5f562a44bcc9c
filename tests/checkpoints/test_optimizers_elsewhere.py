"""What MindSpore and Paddle call the states of their optimizers: they take the steps of PyTorch's, and are read here.

`make test-mindspore` and `make test-paddle` set up environments for them and run this.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from roundoff.checkpoints.checkpoint import Checkpoint, Role
from roundoff.checkpoints.pair.layer_groups import read_optimizer_name
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.write.checkpoint_writer import write_checkpoint
from roundoff.checkpoints.write.conversion import plan_conversion

MINDSPORE = os.environ.get("ROUNDOFF_MINDSPORE_PYTHON")
PADDLE = os.environ.get("ROUNDOFF_PADDLE_PYTHON")
LR = {"learning_rate": 0.01}
RMS = {"alpha": 0.9, "eps": 1e-10, "centered": True, "momentum": 0.5}
CENTERED = {"rho": 0.9, "centered": True, "momentum": 0.5}
AMSGRAD = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}

IN_MINDSPORE = [
    ("Adam", LR, torch.optim.Adam, {}, {"exp_avg", "exp_avg_sq"}),
    ("Adam", LR | {"use_amsgrad": True}, torch.optim.Adam, {"amsgrad": True}, AMSGRAD),
    ("AdamWeightDecay", LR | {"eps": 1e-8}, torch.optim.Adam, {}, {"exp_avg", "exp_avg_sq"}),
    ("Momentum", LR | {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer"}),
    ("SGD", LR | {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer"}),
    ("RMSProp", LR | {"centered": True, "momentum": 0.5}, torch.optim.RMSprop, RMS, {"grad_avg"}),
    ("Adagrad", LR | {"accum": 0.0}, torch.optim.Adagrad, {}, {"sum"}),
    ("AdaMax", LR, torch.optim.Adamax, {}, {"exp_avg", "exp_inf"}),
    ("Adadelta", LR, torch.optim.Adadelta, {}, {"square_avg", "acc_delta"}),
    ("Rprop", LR, torch.optim.Rprop, {}, {"prev", "step_size"}),
]  # fmt: skip
IN_PADDLE = [
    ("Adam", LR, torch.optim.Adam, {}, {"exp_avg", "exp_avg_sq"}),
    ("AdamW", LR | {"amsgrad": True}, torch.optim.AdamW, {"amsgrad": True}, AMSGRAD),
    ("Lamb", LR, torch.optim.Adam, {}, {"exp_avg", "exp_avg_sq"}),
    ("Momentum", LR | {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}, {"momentum_buffer"}),
    ("RMSProp", LR | CENTERED, torch.optim.RMSprop, RMS, {"square_avg", "grad_avg"}),
    ("Adagrad", LR, torch.optim.Adagrad, {}, {"sum"}),
    ("Adamax", LR, torch.optim.Adamax, {}, {"exp_avg", "exp_inf"}),
    ("Adadelta", LR | {"rho": 0.9}, torch.optim.Adadelta, {}, {"square_avg", "acc_delta"}),
    ("NAdam", LR, torch.optim.NAdam, {}, {"exp_avg", "exp_avg_sq"}),
    ("RAdam", LR, torch.optim.RAdam, {}, {"exp_avg", "exp_avg_sq"}),
    ("Rprop", LR, torch.optim.Rprop, {}, {"prev", "step_size"}),
]  # fmt: skip


def run(python: str | None, *arguments: str | Path) -> None:
    assert python is not None
    command = [python, str(Path(__file__).parent / "optimizer_side.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def stepped(tmp_path: Path, kind: Any, settings: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer, Path]:
    """Take three steps here, and write what the other framework needs for the same."""
    torch.manual_seed(0)
    model = nn.Module()
    model.fc = nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=0.01, **settings)
    start = {
        "weight": model.fc.weight.detach().clone(),
        "bias": model.fc.bias.detach().clone(),
        "steps": torch.tensor(3),
    }
    for step in range(3):
        for name, parameter in model.fc.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            start[f"{name}.{step}"] = parameter.grad.clone()
        optimizer.step()
    np.savez(tmp_path / "start.npz", **{name: value.numpy() for name, value in start.items()})
    return model, optimizer, tmp_path / "start.npz"


def states(checkpoint: Checkpoint) -> dict[tuple[str, str], torch.Tensor]:
    """Return the states whose meaning is known, by PyTorch's words; no state may be taken for a weight."""
    entries = checkpoint.entries
    parameters = [name for name, entry in entries.items() if entry.role is Role.PARAMETER]
    assert {name.rpartition("fc.")[2] for name in parameters} <= {"weight", "bias"}
    found = {}
    for name, entry in entries.items():
        read = read_optimizer_name(name, parameters=parameters, others=entries)
        if entry.role is Role.OPTIMIZER and read is not None and not read.slot.startswith("beta"):
            owner = "weight" if read.owner.endswith(("weight", "w_0")) else "bias"
            value = checkpoint.tensor(name)
            found[owner, read.slot] = value.T if name.endswith("_0") and value.ndim == 2 else value
    return found


def assert_equal(found: dict[tuple[str, str], torch.Tensor], model: nn.Module, optimizer: Any, slots: set[str]) -> None:
    assert slots <= {slot for _, slot in found} <= slots | {"square_avg"}  # which starts with 1 in MindSpore
    for (owner, slot), value in ((key, value) for key, value in found.items() if key[1] in slots):
        wanted = optimizer.state[model.get_parameter(f"fc.{owner}")][slot]
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-7, msg=lambda text: f"{owner} {slot}: {text}")  # noqa: B023


@pytest.mark.skipif(MINDSPORE is None, reason="MindSpore has an environment of its own: make test-mindspore")
@pytest.mark.parametrize(("name", "settings", "kind", "ours", "slots"), IN_MINDSPORE)
def test_the_states_of_mindspore_are_those_of_torch(tmp_path: Path, name, settings, kind, ours, slots):
    model, optimizer, start = stepped(tmp_path, kind, ours)
    run(MINDSPORE, "mindspore", name, json.dumps(settings), start, tmp_path / "a.ckpt")
    assert_equal(states(read_checkpoint(tmp_path / "a.ckpt")), model, optimizer, slots)


@pytest.mark.skipif(PADDLE is None, reason="Paddle has an environment of its own: make test-paddle")
@pytest.mark.parametrize(("name", "settings", "kind", "ours", "slots"), IN_PADDLE)
def test_the_states_of_paddle_are_those_of_torch(tmp_path: Path, name, settings, kind, ours, slots):
    model, optimizer, start = stepped(tmp_path, kind, ours)
    run(PADDLE, "paddle", name, json.dumps(settings), start, tmp_path / "a.pdopt")
    assert_equal(states(read_checkpoint(tmp_path / "a.pdopt")), model, optimizer, slots)


@pytest.mark.skipif(MINDSPORE is None, reason="MindSpore has an environment of its own: make test-mindspore")
@pytest.mark.parametrize(
    ("name", "settings", "kind", "ours", "slots"),
    [each for each in IN_MINDSPORE if each[0] not in ("AdamWeightDecay", "SGD")],
)
def test_mindspore_loads_the_states_of_torch(tmp_path: Path, name, settings, kind, ours, slots):
    model, optimizer, _ = stepped(tmp_path, kind, ours)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pth")
    plan = plan_conversion(read_checkpoint(tmp_path / "a.pth"), target="mindspore")
    write_checkpoint(tmp_path / "a.ckpt", plan.tensors, target="mindspore")
    run(MINDSPORE, "load", name, json.dumps(settings), tmp_path / "a.ckpt", tmp_path / "result.npz")
    found = dict(np.load(tmp_path / "result.npz"))
    left = set(found.pop("__left").tolist())
    counted = {"global_step"} if kind is torch.optim.SGD else set()  # PyTorch's does not count its steps
    assert left <= {"learning_rate", "momentum", "moment.fc.weight", "moment.fc.bias", *counted}
    assert counted or found["global_step"] == 3
    both = {name: torch.from_numpy(np.asarray(value)) for name, value in found.items()}
    kept = {}
    for name in both:
        read = read_optimizer_name(name, parameters=[], others=both)
        if read is not None and name not in left:
            kept[read.owner.removeprefix("fc."), read.slot] = both[name]
    assert_equal(kept, model, optimizer, slots)
