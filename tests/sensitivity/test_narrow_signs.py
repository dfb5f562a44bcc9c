"""A training that does not compute in fp32 is measured, with a warning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from roundoff.precision import apply_recipe
from roundoff.sensitivity import Sensitivity, measuring_sensitivity
from roundoff.sensitivity.measuring import NarrowTrainingWarning


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def measure_under(recipe: str, **settings: Any) -> Sensitivity:
    model = net()
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe, **settings)
    with measuring_sensitivity(step=0, formats=["bf16"]) as found:
        optimizer.backward(model(torch.ones(2, 4)).float().sum())
        optimizer.step()
    return found.sensitivity


@pytest.mark.parametrize(
    ("recipe", "settings", "sign"),
    [
        ("O2", {}, "the recipe 'O2' is applied"),
        ("bf16", {"arithmetic": "native"}, "the recipe 'bf16' is applied, there are weights in torch.bfloat16"),
        ("amp-bf16", {}, "torch.autocast is on, the recipe 'amp-bf16' is applied"),
        ("fp8", {}, "the recipe 'fp8' is applied"),
        ("fp32", {"overrides": {"2": "bf16"}}, "the recipe 'fp32' is applied"),
    ],
)
def test_a_training_that_is_already_narrow_causes_a_warning(recipe: str, settings: dict[str, Any], sign: str):
    with pytest.warns(NarrowTrainingWarning) as warned:
        measure_under(recipe, **settings)
    assert str(warned[0].message).startswith(f"The measured training does not compute in fp32: {sign}. ")


@pytest.mark.parametrize(("recipe", "settings"), [("fp32", {"overrides": {"2": "fp32"}}), ("act4", {})])
def test_a_recipe_that_computes_in_fp32_is_measured_without_a_word(recipe: str, settings: dict[str, Any]):
    assert measure_under(recipe, **settings).effects


def test_a_narrow_model_without_a_recipe_causes_a_warning():
    model = net().half()
    warned = pytest.warns(NarrowTrainingWarning, match=r"there are weights in torch\.float16")
    with warned, measuring_sensitivity(step=0, formats=["bf16"]):
        model(torch.ones(2, 4).half()).sum().backward()
