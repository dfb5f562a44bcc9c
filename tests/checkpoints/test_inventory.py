"""An inventory counts every tensor of a checkpoint or a model and finds those that cannot be right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.checkpoints.inventory import take_inventory, take_model_inventory
from roundoff.checkpoints.read.dispatch import read_checkpoint


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.int16, torch.bool]
)
def test_values_agree_with_torch(tmp_path: Path, dtype: torch.dtype):
    values = torch.randn(100).mul(3).to(dtype)
    torch.save({"w": values}, tmp_path / "a.pt")
    (item,) = take_inventory(read_checkpoint(tmp_path / "a.pt")).items
    exact = values.double()
    assert item.num_bytes == 100 * values.element_size()
    assert (item.min, item.max) == (exact.min(), exact.max())
    assert item.mean == pytest.approx(exact.mean().item())
    assert item.std == pytest.approx(exact.std(correction=0).item())


@pytest.mark.parametrize(
    ("values", "num_nan", "num_inf", "is_zero"),
    [
        (torch.tensor([1.0, torch.nan, torch.inf, -torch.inf]), 1, 2, False),
        (torch.tensor([torch.nan, torch.nan]), 2, 0, False),
        (torch.tensor([complex(1, torch.nan)]), 1, 0, False),
        (torch.zeros(3, 3), 0, 0, True),
        (torch.tensor([-0.0, 0.0]), 0, 0, True),
        (torch.zeros(2, dtype=torch.complex64), 0, 0, True),
        (torch.empty(0), 0, 0, False),
    ],
)
def test_counts_what_is_not_finite_or_zero(values: Tensor, num_nan: int, num_inf: int, is_zero: bool):
    model = nn.Module()
    model.register_buffer("w", values)
    (item,) = take_model_inventory([model], source="here").items
    assert (item.num_nan, item.num_inf, item.is_zero) == (num_nan, num_inf, is_zero)


def test_a_model_without_memory_is_counted_and_has_no_values():
    with torch.device("meta"):
        model = nn.Linear(10_000_000, 1_000)
    weight, bias = take_model_inventory([model], source="here").items
    assert (weight.num_elements, weight.mean, weight.is_finite, bias.is_zero) == (10**10, None, True, False)


def test_several_models_are_numbered():
    names = [item.name for item in take_model_inventory([nn.Linear(2, 2), nn.Linear(2, 2)], source="here").items]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_only_keeps_what_is_like_a_pattern():
    inventory = take_model_inventory([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))], source="here")
    assert [item.name for item in inventory.only("*.bias").items] == ["0.bias", "1.bias"]
