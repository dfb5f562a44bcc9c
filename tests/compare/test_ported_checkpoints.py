"""One net with the same values, saved by five frameworks: every parameter finds its partner without a map."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from roundoff.checkpoints.pair.layer_matching import PairedBy
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.compare.checkpoints.checkpoint_comparison import compare_checkpoints
from roundoff.compare.checkpoints.compared_pair import PairKind
from tests.checkpoints.ported_net import PortedNet

SAMPLES = Path(__file__).parents[1] / "checkpoints" / "samples" / "ported"
NETS = ["net.ckpt", "net.pdparams", "net.keras", "net_legacy.h5", "nested.weights.h5", "net.msgpack"]
"""Written by MindSpore 2.10, Paddle 3, Keras 3 (in three ways) and Flax; the README there tells how."""


def numbers(place: int, shape: tuple[int, ...]) -> Tensor:
    """Return values of which no two tensors have the same, and which are the same on every machine."""
    counted = np.arange(int(np.prod(shape)), dtype=np.int64)
    values = ((counted * 7919 + 104729 * (place + 1)) % 2048) / 1024 - 1
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def net_state() -> dict[str, Tensor]:
    names = [name for name in PortedNet().state_dict() if not name.endswith("num_batches_tracked")]
    state = PortedNet().state_dict()
    return {**state, **{name: numbers(place, tuple(state[name].shape)) for place, name in enumerate(names)}}


@pytest.fixture
def torch_file(tmp_path: Path) -> Path:
    torch.save(net_state(), tmp_path / "net.pth")
    return tmp_path / "net.pth"


@pytest.mark.parametrize("sample", NETS)
@pytest.mark.parametrize("is_reference", [True, False])
def test_every_parameter_is_paired_and_equal(torch_file: Path, sample: str, is_reference: bool):
    first, second = read_checkpoint(torch_file), read_checkpoint(SAMPLES / sample)
    found = compare_checkpoints(*((first, second) if is_reference else (second, first)))
    assert not found.differs
    assert {each.kind for each in found.pairs} == {PairKind.EQUAL}
    assert PairedBy.VALUES not in {each.pair.by for each in found.pairs}
    names = {each.pair.reference if is_reference else each.pair.candidate for each in found.pairs}
    assert names == {name for name in net_state() if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(NETS, 2)))
def test_frameworks_line_up_among_themselves(first: str, second: str):
    found = compare_checkpoints(read_checkpoint(SAMPLES / first), read_checkpoint(SAMPLES / second))
    assert not found.differs
    assert [each.kind for each in found.pairs] == [PairKind.EQUAL] * 19


@pytest.mark.parametrize("sample", NETS)
def test_a_name_that_says_nothing_is_found_too(tmp_path: Path, sample: str):
    """Give every layer of the PyTorch net a name that is none, in the order of the net."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in net_state()))
    renamed = {
        f"{layers.index(layer)}.{leaf}": value
        for name, value in net_state().items()
        for layer, _, leaf in [name.rpartition(".")]
    }
    torch.save(renamed, tmp_path / "net.pth")
    found = compare_checkpoints(read_checkpoint(tmp_path / "net.pth"), read_checkpoint(SAMPLES / sample))
    assert not found.differs
    assert len(found.pairs) == 19


def test_moments_of_one_framework_line_up_with_those_of_another(torch_file: Path):
    net = PortedNet()
    net.load_state_dict(net_state())
    optimizer = torch.optim.Adam(net.parameters())
    sum(parameter.sum() for parameter in net.parameters()).backward()
    optimizer.step()
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, torch_file)
    found = compare_checkpoints(read_checkpoint(torch_file), read_checkpoint(SAMPLES / "net_adam.ckpt"))
    states = {each.pair.reference: each.pair.candidate for each in found.pairs if each.pair.role == "optimizer"}
    parameters = [name for name, _ in net.named_parameters()]
    words = {"weight": "weight", "bias": "bias"} | {"bn1.weight": "gamma"}
    assert len(states) == 2 * len(parameters)
    assert states[f"optimizer.state.{parameters.index('bn1.weight')}.exp_avg"] == f"moment1.bn1.{words['bn1.weight']}"
    assert states[f"optimizer.state.{parameters.index('fc2.bias')}.exp_avg_sq"] == "moment2.fc2.bias"
