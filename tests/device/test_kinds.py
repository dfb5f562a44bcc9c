"""A script on an accelerator under watch is the same script, on every kind of training that the device can run.

A spread of kinds runs with the other tests, all of them with `make test-device KINDS=all`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundoff.runs import Run
from tests.watch.script_server import ScriptServer
from tests.watch.test_kinds import KINDS, check_is_the_same_script

SPREAD = {
    "accumulation", "attention", "autocast_bf16", "averaged_model", "batch_in_place",
    "checkpointing_reentrant", "closure_lbfgs", "custom_function", "edited_gradients", "evaluation",
    "func_gradients", "function_mode", "gan", "generator_states", "grad_scaler", "gradient_penalty",
    "half_precision_weights", "lazy_modules", "logged", "optimizer_in_backward", "own_optimizer",
    "parametrizations", "plain", "recipe_bf16", "recipe_fixed", "recipe_o2", "reinforcement", "save_and_load",
    "several_backwards", "tied_weights", "users_hooks",
}  # fmt: skip
"""What runs in every change: one of each way to train, and no two that a device makes no difference to."""

_FORKS = "it forks after the device was used, which the device refuses, as others do"
_GLOO = "gloo has no kernels for the device; below, two ranks exchange through the host"
_FOR_CPU = "its script asks for tensors on the CPU, and uses others with them"
NOT_ON_DEVICE = {
    "child_processes": _FORKS,
    "data_loader": _FORKS,
    "data_loader_workers": _FORKS,
    "carried_hidden_state": "the device has no kernels for recurrent cells",
    "rnn_cell": "the device has no kernels for recurrent cells",
    "complex_numbers": "the device has no complex numbers",
    "packed_sequences": _FOR_CPU,
    "random_numbers": _FOR_CPU,
    "sharded_alone": _GLOO,
    "sparse_gradients": "the device has no kernels for sparse tensors",
    "sparse_inputs": "the device has no kernels for sparse tensors",
    "two_ranks_ddp": _GLOO,
    "two_ranks_fsdp": _GLOO,
    "meta_learning": "on its own thread autograd adds up in another order every time, so a replay differs in last bits",
}
"""Kinds that cannot run there, watched or not, or not twice alike, and why."""


RANKS = '''
"""Two ranks, each with a device: gloo has no kernels for it, so gradients are exchanged through the host."""
import sys

import torch
import tests.device.registered
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("sim", rank)
torch.accelerator.set_device_index(rank)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)
for step in range(30):
    x = torch.randn(16, 8, generator=generator)
    x, y = x.to(device), (x.argmax(1) % 4).to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    for parameter in model.parameters():
        staged = parameter.grad.cpu()
        dist.all_reduce(staged)
        parameter.grad.copy_(staged / 2)
    optimizer.step()
    if step % 10 == 0 and rank == 0:
        print(step, loss.item())
torch.save([p.detach().cpu() for p in model.parameters()], f"{sys.argv[1]}.{rank}")
dist.destroy_process_group()
'''


def on_device(script: Path, folder: Path) -> Path:
    """Write a script of `tests/watch/kinds` so that it makes its tensors on the device, and return its path."""
    text = script.read_text()
    is_opening = (ast.Expr, ast.ImportFrom)  # its docstring, and imports from __future__
    first = next(
        node.lineno
        for node in ast.parse(text).body
        if not isinstance(node, is_opening) or getattr(node, "module", "__future__") != "__future__"
    )
    lines = text.replace('"cpu"', '"sim"').splitlines(keepends=True)
    lines.insert(first - 1, 'import torch; import tests.device.registered; torch.set_default_device("sim")\n')
    written = folder / script.name
    written.write_text("".join(lines))
    return written


@pytest.fixture(scope="module")
def device_server() -> Iterator[ScriptServer]:
    """Run scripts in forks of a process that has not used the device yet."""
    with ScriptServer("tests.device.simulated_device") as server:
        yield server


def _chosen() -> list[Path]:
    is_all = os.environ.get("ROUNDOFF_KINDS_ON_DEVICE") == "all"
    return [script for script in KINDS if script.stem not in NOT_ON_DEVICE and (is_all or script.stem in SPREAD)]


@pytest.mark.parametrize("script", _chosen(), ids=[script.stem for script in _chosen()])
def test_a_watched_script_is_the_same_script(script: Path, device_server: ScriptServer, tmp_path: Path) -> None:
    check_is_the_same_script(on_device(script, tmp_path), device_server, tmp_path)


def test_every_kind_is_either_run_or_has_a_reason() -> None:
    names = {script.stem for script in KINDS}
    assert names >= SPREAD | NOT_ON_DEVICE.keys()
    assert not SPREAD & NOT_ON_DEVICE.keys()


def test_two_ranks_that_exchange_through_the_host(device_server: ScriptServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RANKS)
    words = [script, "weights"]
    bare = device_server.run(words, folder=tmp_path / "bare", ranks=2)
    watched = device_server.run(words, folder=tmp_path / "watched", ranks=2, watched=["--name", "run"])

    assert (bare.codes, watched.codes) == ([0, 0], [0, 0]), watched.stderr
    assert watched.stdout == bare.stdout
    for rank in range(2):
        assert (tmp_path / f"bare/weights.{rank}").read_bytes() == (tmp_path / f"watched/weights.{rank}").read_bytes()
    assert watched.stderr.startswith("Nothing found; watched 30 steps")
    run = Run.open(tmp_path / "watched" / "runs" / "run")
    assert (run.ranks, run.steps, list(run.failures())) == ([0, 1], [0, 1], [])
