"""What a recipe has put around a model's forward does not outlive one that Ctrl-C or `sys.exit` has ended."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.precision import apply_recipe

WAYS = [("O1", "auto"), ("half", "auto"), ("bf16", "emulated"), ("fp8", "auto"), ("O1", "native")]


class Interrupted(nn.Module):
    """Its second layer ends the forward by `ends_by`, if set."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.ends_by: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        if self.ends_by is not None:
            raise self.ends_by
        return x @ x.T


def build(recipe: str, arithmetic: str, **options: Any) -> Interrupted:
    torch.manual_seed(0)
    model = Interrupted()
    model, _ = apply_recipe(
        model, torch.optim.SGD(model.parameters(), lr=0.1), recipe, arithmetic=arithmetic, **options
    )
    return model


def interrupt(model: Interrupted, error: BaseException, x: Tensor) -> None:
    model.ends_by = error
    with pytest.raises(type(error)):
        model(x)
    model.ends_by = None


ENDS = [KeyboardInterrupt(), SystemExit(3), ValueError("no")]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("recipe", "arithmetic"), WAYS)
def test_what_follows_an_ended_forward_computes_as_before(recipe: str, arithmetic: str, error: BaseException) -> None:
    x, thirds = torch.randn(4, 8), torch.full((4, 4), 1 / 3)
    product = thirds @ thirds
    model = build(recipe, arithmetic)
    model(x)
    expected = copy.deepcopy(model)(x)
    interrupt(model, error, x)
    found = thirds @ thirds
    assert torch.equal(found, product)
    assert found.dtype is torch.float32
    assert torch.equal(model(x), expected)
    assert torch._C._len_torch_function_stack() == 0
    assert torch.equal(thirds @ thirds, product)


@pytest.mark.parametrize(("recipe", "arithmetic"), WAYS[:4])
def test_a_part_called_on_its_own_after_an_ended_forward_is_rounded(recipe: str, arithmetic: str) -> None:
    x = torch.randn(4, 8)
    model = build(recipe, arithmetic)
    expected = copy.deepcopy(model).layers(x)
    interrupt(model, KeyboardInterrupt(), x)
    assert torch.equal(model.layers(x), expected)
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("recipe", ["O1", "half", "fp8"])
def test_a_site_called_on_its_own_has_its_own_format(recipe: str) -> None:
    x = torch.randn(4, 8)
    model = build(recipe, "emulated", overrides={"layers.0": "fp32"})
    expected = nn.functional.linear(x, model.layers[0].weight, model.layers[0].bias)
    if recipe == "half":  # a model that is cast as a whole gets the result of an exception in its own format
        expected = expected.half().float()
    assert torch.equal(model.layers[0](x), expected)
