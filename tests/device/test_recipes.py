"""Every kind of recipe on an accelerator: the losses of the CPU, and no wait but that of loss scaling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundoff.precision import apply_recipe
from tests.device.simulated_device import DeviceCounts, behaving, counting

SCALED = ("O1", "O2", "amp-fp16", "O2+act4")
UNSCALED = (
    "fp32", "half", "O3", "amp-bf16", "bf16", "bf16-master", "bf16-stochastic", "bf16-kahan", "fp8", "fp8-delayed",
    "mxfp8", "mxfp4", "fixed", "ascend-fp16",
)  # fmt: skip
COMPRESSED = ("act8", "act4", "act2", "amp-bf16+act8")


def train(recipe: str, device: str, *, counts: list[DeviceCounts] | None = None) -> list[float]:
    """Train four steps on fixed data under a recipe and return the losses."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    )
    x, y = torch.randn(16, 3, 6, 6).to(device), torch.randint(10, (16,)).to(device)
    model.to(device)
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), recipe)
    losses = []
    for _ in range(4):
        with counting() as counted:
            loss = F.cross_entropy(model(x).float(), y)
            optimizer.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        if counts is not None:
            counts.append(counted)
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("recipe", [*UNSCALED, *SCALED, *COMPRESSED])
def test_the_losses_are_those_of_the_cpu(recipe: str) -> None:
    counts: list[DeviceCounts] = []
    assert train(recipe, "sim", counts=counts) == pytest.approx(train(recipe, "cpu"), rel=1e-3)

    for step in counts[1:]:
        assert len(step.waits) == (recipe in SCALED), step.where("wait")


@pytest.mark.parametrize("recipe", ["O2", "fp8", "fixed", "act4"])
def test_fp64_is_not_needed(recipe: str) -> None:
    expected = train(recipe, "sim")
    with behaving(execution="when waited for", fp64=False):
        assert train(recipe, "sim") == pytest.approx(expected, rel=1e-3)
