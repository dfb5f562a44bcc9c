"""What rounding one site really does to the loss: the measurement that predictions are held against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from roundoff.precision import apply_recipe


def effect_alone(
    model: nn.Module, run_step: Callable[[nn.Module], Tensor], fmt: str, keys: Sequence[str]
) -> dict[str, float]:
    """Return by how much the loss moves if one site, or one op of a site, is rounded and nothing else.

    Every key costs a forward of a copy of the model, in the same state and with the same random numbers.

    Args:
        model: The model in fp32; it is not changed.
        run_step: Returns the loss of one batch. Small effects are lost in the rounding of an fp32 loss: compute it from
            `model(x).double()`.
        fmt: The format to round to.
        keys: Sites or ops as overrides name them: `blocks.1.attn` (with what is inside it), `blocks.1.attn:softmax`.
    """
    before = loss_with(model, run_step, {})
    return {key: loss_with(model, run_step, {key: fmt}) - before for key in keys}


def loss_with(model: nn.Module, run_step: Callable[[nn.Module], Tensor], overrides: Mapping[str, str]) -> float:
    """Return the loss of one batch under the overrides of an fp32 recipe, on a copy of the model."""
    with torch.random.fork_rng(devices=[]):
        narrow = copy.deepcopy(model)
        apply_recipe(narrow, torch.optim.SGD(narrow.parameters(), lr=0.0), "fp32", overrides=overrides)
        return float(run_step(narrow).detach())
