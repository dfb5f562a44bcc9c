"""One net of five frameworks is converted into every format, with names, axes and counters of the other side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from roundoff.checkpoints.checkpoint import Checkpoint
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.write.checkpoint_writer import TARGETS, Target, write_checkpoint
from roundoff.checkpoints.write.conversion import ConversionPlan, plan_conversion
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import flax_bytes
from tests.checkpoints.ported_net import PortedNet

PORTED = Path(__file__).parents[1] / "samples" / "ported"
NETS = ["net.ckpt", "net.pdparams", "net.keras", "nested.weights.h5", "net.msgpack"]
MINDSPORE_NAMES = {
    "conv.weight": "conv.weight",
    "conv.bias": "conv.bias",
    "bn.weight": "bn.gamma",
    "bn.bias": "bn.beta",
    "bn.running_mean": "bn.moving_mean",
    "bn.running_var": "bn.moving_variance",
    "embed.weight": "embed.embedding_table",
    "norm.weight": "norm.gamma",
    "norm.bias": "norm.beta",
    "fc.weight": "fc.weight",
    "fc.bias": "fc.bias",
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 4)

    def forward(self, pictures: Tensor, words: Tensor) -> Tensor:
        seen = self.bn(self.conv(pictures)).mean((2, 3))
        result: Tensor = self.fc(self.norm(seen + self.embed(words)))
        return result


def trained(
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam, *, num_steps: int = 3
) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = Net()
    stepping = optimizer(net.parameters(), **({"momentum": 0.9} if optimizer is torch.optim.SGD else {}), lr=0.1)  # type: ignore[call-arg]
    for _ in range(num_steps):
        stepping.zero_grad()
        net(torch.randn(2, 3, 5, 5), torch.randint(7, (2,))).square().sum().backward()
        stepping.step()
    return net, stepping


def saved(path: Path, value: Mapping[str, object]) -> Checkpoint:
    torch.save(dict(value), path)
    return read_checkpoint(path)


def values(plan: ConversionPlan) -> dict[str, Tensor]:
    return {stored.entry.name: stored.read() for stored in plan.tensors}


def test_torch_names_become_those_of_mindspore(tmp_path: Path):
    state = trained()[0].state_dict()
    found = values(plan_conversion(saved(tmp_path / "a.pth", state), target="mindspore"))
    assert set(found) == set(MINDSPORE_NAMES.values())
    for name, other in MINDSPORE_NAMES.items():
        assert torch.equal(found[other], state[name])


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "mindspore"])
def test_names_of_torch_stay(tmp_path: Path, target: Target):
    state = trained()[0].state_dict()
    found = values(plan_conversion(saved(tmp_path / "a.pth", state), target=target))
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in state.items()}


@pytest.mark.parametrize("sample", NETS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_framework_goes_into_every_format_and_is_the_same_net_there(tmp_path: Path, sample: str, target: Target):
    """Written alone, then turned back into the names and layout it came from: not one bit is lost."""
    source = read_checkpoint(PORTED / sample)
    write_checkpoint(tmp_path / "there", plan_conversion(source, target=target).tensors, target=target)
    back = values(plan_conversion(read_checkpoint(tmp_path / "there"), target="npz", like=source))
    assert set(back) == set(source.entries)
    for name, tensor in back.items():
        assert torch.equal(tensor, source.tensor(name)), name


@pytest.mark.parametrize("sample", NETS)
def test_a_model_of_pytorch_loads_what_was_made_like_its_own_checkpoint(tmp_path: Path, sample: str):
    like = saved(tmp_path / "like.pth", PortedNet().state_dict())
    plan = plan_conversion(read_checkpoint(PORTED / sample), target="torch", like=like)
    write_checkpoint(tmp_path / "a.pth", plan.tensors, target="torch")
    net = PortedNet()
    net.load_state_dict(torch.load(tmp_path / "a.pth", weights_only=True), strict=True)
    first = read_checkpoint(PORTED / "net.ckpt")
    for name in ("conv2.weight", "fc1.weight", "fc2.bias"):
        assert torch.equal(net.state_dict()[name], first.tensor(name))


def test_takes_dtypes_from_the_other_side_and_refuses_what_does_not_fit(tmp_path: Path):
    source = saved(tmp_path / "a.pth", {"w": torch.tensor([1.0, 70000.0])})
    like = saved(tmp_path / "b.pth", {"w": torch.zeros(2).bfloat16()})
    assert values(plan_conversion(source, target="torch", like=like))["w"].dtype is torch.bfloat16
    half = saved(tmp_path / "c.pth", {"w": torch.zeros(2).half()})
    with pytest.raises(CheckpointError, match="1 of its values would no longer be finite"):
        values(plan_conversion(source, target="torch", like=half))


def test_says_which_parameters_are_missing(tmp_path: Path):
    source = saved(tmp_path / "a.pth", {"fc.weight": torch.ones(3, 4)})
    like = saved(tmp_path / "b.pth", {"fc.weight": torch.ones(3, 4), "fc.bias": torch.ones(3)})
    with pytest.raises(
        CheckpointError, match=r"lacks 1 tensors of .*\n  why: 'fc.bias': the other side has no such name"
    ):
        plan_conversion(source, target="torch", like=like)


def test_says_what_was_guessed(tmp_path: Path):
    source = saved(tmp_path / "a.pth", {"fc.weight": torch.ones(3, 4)})
    like = saved(tmp_path / "b.pth", {"head.weight": torch.ones(3, 4)})
    (note,) = plan_conversion(source, target="torch", like=like).notes
    assert note == ("matched by shape or order only: 1 tensor ('fc.weight' as 'head.weight'); check them, or use --map")


def test_moments_and_steps_go_to_mindspore(tmp_path: Path):
    net, optimizer = trained(num_steps=3)
    source = saved(tmp_path / "a.pth", {"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    found = values(plan_conversion(source, target="mindspore"))
    assert torch.equal(found["moment1.norm.gamma"], optimizer.state[net.norm.weight]["exp_avg"])
    assert torch.equal(found["moment2.embed.embedding_table"], optimizer.state[net.embed.weight]["exp_avg_sq"])
    assert found["global_step"].tolist() == [3]
    assert found["beta1_power"].item() == pytest.approx(0.9**3)


def test_momentum_goes_to_mindspore(tmp_path: Path):
    net, optimizer = trained(torch.optim.SGD)
    source = saved(tmp_path / "a.pth", {"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    found = values(plan_conversion(source, target="mindspore"))
    assert torch.equal(found["moments.fc.weight"], optimizer.state[net.fc.weight]["momentum_buffer"])


def test_an_optimizer_goes_on_with_the_moments_that_came_back(tmp_path: Path):
    net, optimizer = trained(num_steps=3)
    source = saved(tmp_path / "a.pth", {"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    write_checkpoint(tmp_path / "a.ckpt", plan_conversion(source, target="mindspore").tensors, target="mindspore")
    back = plan_conversion(read_checkpoint(tmp_path / "a.ckpt"), target="torch")
    write_checkpoint(tmp_path / "b.pth", back.tensors, target="torch")
    loaded = torch.load(tmp_path / "b.pth", weights_only=True)
    other, stepping = trained(num_steps=1)
    other.load_state_dict(loaded["model"])
    groups = stepping.state_dict()["param_groups"]
    stepping.load_state_dict({"state": loaded["optimizer"]["state"], "param_groups": groups})
    for reference, candidate in zip(net.parameters(), other.parameters(), strict=True):
        assert {name: value.tolist() for name, value in optimizer.state[reference].items()} == {
            name: value.tolist() for name, value in stepping.state[candidate].items()
        }


STATES_OF_OPTAX = {
    torch.optim.Adam: {"exp_avg": "mu", "exp_avg_sq": "nu"},
    torch.optim.SGD: {"momentum_buffer": "trace"},
    torch.optim.RMSprop: {"square_avg": "nu"},
}


@pytest.mark.parametrize("kind", STATES_OF_OPTAX)
def test_an_optimizer_goes_on_with_the_states_of_optax(tmp_path: Path, kind: type[torch.optim.Optimizer]):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **momentum)  # type: ignore[call-arg]
    for _ in range(3):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()

    def tree_of(values: list[Tensor]) -> dict[str, Any]:
        pairs = zip(values[::2], values[1::2], strict=True)
        return {
            f"Dense_{i}": {"kernel": w.detach().t().numpy(), "bias": b.detach().numpy()}
            for i, (w, b) in enumerate(pairs)
        }

    states = {theirs: tree_of([optimizer.state[p][ours] for p in model.parameters()])
              for ours, theirs in STATES_OF_OPTAX[kind].items()}  # fmt: skip
    tree = {"step": np.int32(3), "params": tree_of(list(model.parameters())), "opt_state": {"0": states, "1": {}}}
    (tmp_path / "state.msgpack").write_bytes(flax_bytes(tree))
    with read_checkpoint(tmp_path / "state.msgpack") as source:
        write_checkpoint(tmp_path / "state.pt", plan_conversion(source, target="torch").tensors, target="torch")
    saved = torch.load(tmp_path / "state.pt")["optimizer"]["state"]
    for place, parameter in enumerate(model.parameters()):
        for slot in STATES_OF_OPTAX[kind]:
            assert torch.equal(saved[place][slot], optimizer.state[parameter][slot])
    optimizer.load_state_dict({"state": saved, "param_groups": optimizer.state_dict()["param_groups"]})
    optimizer.step()


def test_batches_are_counted_as_steps_where_only_those_are_known(tmp_path: Path):
    source = read_checkpoint(PORTED / "net_adam.ckpt")
    assert values(plan_conversion(source, target="torch"))["bn1.num_batches_tracked"].item() == 17
    like = saved(tmp_path / "like.pth", PortedNet().state_dict())
    assert values(plan_conversion(source, target="torch", like=like))["bn2.num_batches_tracked"].item() == 17


def test_a_map_renames(tmp_path: Path):
    source = saved(
        tmp_path / "a.pth", {"a.fc.weight": torch.ones(2, 2), "a.fc.bias": torch.ones(2), "b": torch.ones(3)}
    )
    found = plan_conversion(source, target="safetensors", name_map={"a.*": "body.*", "b": "scale"})
    assert list(values(found)) == ["body.fc.weight", "body.fc.bias", "scale"]
    with pytest.raises(CheckpointError, match=r"'c\.\*', which"):
        plan_conversion(source, target="safetensors", name_map={"c.*": "body.*"})
    with pytest.raises(CheckpointError, match="Two tensors would have the name 'b'"):
        plan_conversion(source, target="safetensors", name_map={"a.fc.bias": "b"})


def test_npz_gets_no_bfloat16(tmp_path: Path):
    source = saved(tmp_path / "a.pth", {"w": torch.ones(2).bfloat16()})
    plan = plan_conversion(source, target="npz")
    assert values(plan)["w"].dtype is torch.float32
    assert plan.notes == ["widened to float32, because numpy has no bfloat16 and no float8: 1 tensor"]
