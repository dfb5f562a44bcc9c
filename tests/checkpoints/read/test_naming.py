"""Names are those the model itself uses, and roles distinguish it from everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read.assembly import is_optimizers
from roundoff.checkpoints.read.dispatch import read_checkpoint

ONE = torch.ones(2)


def roles(tmp_path: Path, saved: Any) -> dict[str, Role]:
    torch.save(saved, tmp_path / "a.pt")
    return {name: entry.role for name, entry in read_checkpoint(tmp_path / "a.pt").entries.items()}


@pytest.mark.parametrize("container", ["model", "state_dict", "model_state_dict", "module", "model_state"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_a_models_dict_and_what_wrappers_put_before_its_names_go(tmp_path: Path, container: str, prefix: str):
    saved = {container: {f"{prefix}conv.weight": ONE, f"{prefix}fc.weight": ONE}, "epoch": 3}
    assert list(roles(tmp_path, saved)) == ["conv.weight", "fc.weight"]


@pytest.mark.parametrize(
    "names",
    [
        ["module.conv.weight", "fc.weight"],  # only what all have is a wrapper's
        ["model.embed.weight", "model.norm.weight"],  # a model may have a part of that name
        ["net.0.weight", "net.2.weight"],
        ["module"],
    ],
)
def test_what_may_be_the_models_own_stays(tmp_path: Path, names: list[str]):
    assert list(roles(tmp_path, dict.fromkeys(names, ONE))) == names


def test_names_stay_where_they_would_fall_together(tmp_path: Path):
    saved = {"model": {"w": ONE}, "state_dict": {"w": ONE}}
    assert list(roles(tmp_path, saved)) == ["model.w", "state_dict.w"]


def test_several_networks_keep_their_names(tmp_path: Path):
    found = roles(tmp_path, {"generator": {"w": ONE}, "discriminator": {"w": ONE}})
    assert found == {"generator.w": Role.PARAMETER, "discriminator.w": Role.PARAMETER}


def test_averages_of_the_weights_and_states_of_generators_are_not_the_model(tmp_path: Path):
    saved = {"model": {"w": ONE}, "model_ema": {"w": ONE}, "rng": torch.get_rng_state(), "callbacks": {"best": ONE}}
    assert roles(tmp_path, saved) == {
        "w": Role.PARAMETER,
        **dict.fromkeys(("model_ema.w", "rng", "callbacks.best"), Role.OTHER),
    }


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 2))
        self.head = nn.Linear(2, 2)


def test_a_whole_model_has_the_names_of_its_state(tmp_path: Path):
    model = Outer()
    torch.save(model, tmp_path / "a.pt")
    assert list(read_checkpoint(tmp_path / "a.pt").entries) == list(model.state_dict())


def test_a_whole_model_in_a_training_loses_the_name_of_its_dict(tmp_path: Path):
    assert set(roles(tmp_path, {"model": Outer(), "epoch": 1})) == set(Outer().state_dict())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adadelta])
def test_an_optimizers_own_file_is_recognised_by_its_state(tmp_path: Path, kind: Any):
    model = nn.Linear(2, 2)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    found = roles(tmp_path, optimizer.state_dict())
    assert {role for name, role in found.items() if not name.endswith("step")} == {Role.OPTIMIZER}


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("bn.running_mean", Role.BUFFER),
        ("bn.moving_variance", Role.BUFFER),
        ("embeddings.position_ids", Role.BUFFER),
        ("logit_scale", Role.PARAMETER),
        ("temperature.weight", Role.PARAMETER),
        ("global_step", Role.OTHER),
    ],
)
def test_single_numbers_are_recognised_by_their_names(tmp_path: Path, name: str, role: Role):
    assert roles(tmp_path, {name: torch.tensor(1.0)}) == {name: role}


def test_integers_are_not_trained(tmp_path: Path):
    assert roles(tmp_path, {"mask": torch.ones(2, dtype=torch.int64), "count": torch.tensor(3)}) == {
        "mask": Role.BUFFER,
        "count": Role.OTHER,
    }


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("optimus.weight", False),
        ("decoder.optical.weight", False),
        ("blocks.0.statistics.bias", False),
        ("momentum_encoder.fc.weight", False),
        ("optimizer.state.0.step", True),
        ("optim.state.conv.weight.exp_avg", True),
        ("optimizer_states.0.state.0.exp_avg", True),
        ("opt_state.0.mu.dense.kernel", True),
        ("moment1.conv.weight", True),
        ("linear_0.w_0_beta1_pow_acc_0", True),
        ("linear_0.w_0_moment2_max_0", True),
        ("linear_0.w_0__avg_squared_grad_0", True),
        ("linear_0.w_0", False),
        ("vhat.conv.weight", True),
        ("lamb_m.conv.weight", True),
        ("state.0.momentum_buffer", True),
    ],
)
def test_an_optimizers_names_are_distinguished_from_similar_ones(name: str, is_one: bool):
    assert is_optimizers(name) == is_one


@pytest.mark.parametrize(
    "word", ["moment.", "mean_grad.", "accum_update.", "prev.", "step_size.", "ax_.", "mu_", "eta_"]
)
def test_words_of_mindspore_are_states_only_where_their_parameter_is(tmp_path: Path, word: str):
    names = [f"{word}fc.weight", "fc.weight", "moment.of.weight"]
    save_file({name: torch.ones(2) for name in names}, tmp_path / "a.safetensors")
    found = {name: entry.role for name, entry in read_checkpoint(tmp_path / "a.safetensors").entries.items()}
    assert found == {names[0]: Role.OPTIMIZER, "fc.weight": Role.PARAMETER, "moment.of.weight": Role.PARAMETER}
