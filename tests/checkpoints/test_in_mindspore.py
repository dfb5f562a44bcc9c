"""MindSpore itself loads what `roundoff convert` wrote, and computes the same; and what it writes is read here.

`make test-mindspore` sets up an environment for it and runs this.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import roundoff.checkpoints.write.checkpoint_writer as writing_mindspore
from roundoff.checkpoints.checkpoint import StoredTensor
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.write.checkpoint_writer import write_checkpoint
from roundoff.checkpoints.write.conversion import plan_conversion
from tests.checkpoints.ported_net import PortedNet

PYTHON = os.environ.get("ROUNDOFF_MINDSPORE_PYTHON")
PORTED = Path(__file__).parent / "samples" / "ported"

pytestmark = pytest.mark.skipif(PYTHON is None, reason="MindSpore has an environment of its own: make test-mindspore")


class Net(PortedNet):
    def forward(self, pictures: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.bn2(self.conv2(self.bn1(self.conv1(pictures))))
        return seen, self.fc2(self.fc1(self.norm(self.embed(words))))


def in_mindspore(task: str, path: Path, other: Path) -> dict[str, np.ndarray]:
    """Let MindSpore do it, and return what it says."""
    assert PYTHON is not None
    command = [PYTHON, str(Path(__file__).parent / "mindspore_side.py"), task, str(path), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(other))


def trained() -> tuple[Net, torch.optim.Adam]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        seen, read = net(torch.randn(2, 3, 8, 8), torch.randint(7, (2, 2)))
        (seen.square().sum() + read.square().sum()).backward()
        optimizer.step()
    return net.eval(), optimizer


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Net, torch.optim.Adam, Path]:
    net, optimizer = trained()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "net.pth")
    return net, optimizer, tmp_path / "net.pth"


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_loads_what_was_converted_and_computes_the_same(saved: tuple[Net, torch.optim.Adam, Path], suffix: str):
    net, _, path = saved
    target = path.with_suffix(f".{suffix}")
    plan = plan_conversion(read_checkpoint(path), target="mindspore")
    write_checkpoint(target, plan.tensors, target="mindspore" if suffix == "ckpt" else "safetensors")
    found = in_mindspore("load", target, path.with_name("result.npz"))
    np.testing.assert_array_equal(found["bn1.moving_variance"], net.bn1.running_var.numpy())
    np.testing.assert_array_equal(found["embed.embedding_table"], net.embed.weight.detach().numpy())
    pictures = torch.from_numpy(np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8))
    with torch.no_grad():
        seen, read = net(pictures, torch.tensor([[0, 3], [6, 1]]))
    np.testing.assert_allclose(found["__seen"], seen.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["__read"], read.numpy(), rtol=1e-4, atol=1e-5)


def test_its_optimizer_goes_on_where_the_other_one_was(saved: tuple[Net, torch.optim.Adam, Path]):
    net, optimizer, path = saved
    plan = plan_conversion(read_checkpoint(path), target="mindspore")
    write_checkpoint(path.with_suffix(".ckpt"), plan.tensors, target="mindspore")
    found = in_mindspore("adam", path.with_suffix(".ckpt"), path.with_name("result.npz"))
    np.testing.assert_array_equal(found["moment1.fc1.weight"], optimizer.state[net.fc1.weight]["exp_avg"].numpy())
    np.testing.assert_array_equal(found["moment2.bn2.gamma"], optimizer.state[net.bn2.weight]["exp_avg_sq"].numpy())
    assert found["global_step"] == 3
    assert found["beta2_power"] == pytest.approx(0.999**3)


@pytest.mark.parametrize("sample", ["net.keras", "net.msgpack", "net.pdparams", "nested.weights.h5"])
def test_loads_what_came_from_other_frameworks(tmp_path: Path, sample: str):
    like = read_checkpoint(PORTED / "net.ckpt")
    plan = plan_conversion(read_checkpoint(PORTED / sample), target="mindspore", like=like)
    write_checkpoint(tmp_path / "net.ckpt", plan.tensors, target="mindspore")
    found = in_mindspore("load", tmp_path / "net.ckpt", tmp_path / "result.npz")
    for name in like.entries:
        np.testing.assert_array_equal(found[name], like.tensor(name).numpy())


def test_puts_slices_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing_mindspore, "SLICE_BYTES", 1000)
    values = {"w": torch.randn(50, 30), "n": torch.randn(30).bfloat16(), "s": torch.tensor(2.5), "i": torch.arange(3)}
    tensors = [
        StoredTensor(name=n, shape=tuple(v.shape), dtype=str(v.dtype).removeprefix("torch."), read=lambda v=v: v)
        for n, v in values.items()
    ]
    write_checkpoint(tmp_path / "a.ckpt", tensors, target="mindspore")
    found = in_mindspore("plain", tmp_path / "a.ckpt", tmp_path / "result.npz")
    for name, value in values.items():
        np.testing.assert_array_equal(found[name], value.float().numpy() if name == "n" else value.numpy())


def test_what_it_writes_is_read(tmp_path: Path):
    values = {
        "w": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "h": np.ones((2, 2), np.float16),
        "i": np.arange(5, dtype=np.int64),
        "b": np.array([True, False]),
        "d": np.float64([1e300]),
    }
    np.savez(tmp_path / "values.npz", **values)
    in_mindspore("save", tmp_path / "a.ckpt", tmp_path / "values.npz")
    found = read_checkpoint(tmp_path / "a.ckpt")
    for name, value in values.items():
        np.testing.assert_array_equal(found.tensor(name).numpy(), value)
        np.testing.assert_array_equal(read_checkpoint(tmp_path / "a.safetensors").tensor(name).numpy(), value)
    assert found.tensor("narrow").tolist() == [1.5, -2.0]
    assert found.tensor("epoch").item() == 3
    assert found.settings["note"] == "hello"
