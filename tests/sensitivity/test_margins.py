"""How much room a step leaves to the limits of its formats."""

import math

import pytest
import torch
from torch import nn

from roundoff.precision import find_recipe
from roundoff.sensitivity.margins import Margin, measuring_margins


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def train(model: nn.Module, *, steps: int = 3, loss_factor: float = 1.0) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(4, 16)).square().mean()
        (loss * loss_factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def measured(model: nn.Module, recipe: str, *, every: int = 1, **changes: float) -> dict[int, list[Margin]]:
    found: dict[int, list[Margin]] = {}
    with measuring_margins(find_recipe(recipe), every=every, on_step=found.__setitem__) as measurement:
        train(model, **changes)
    assert measurement.failure is None
    return found


def margin(margins: list[Margin], site: str, part: str, kind: str) -> Margin:
    (found,) = (each for each in margins if each.key == (site, part, kind))
    return found


def test_a_result_is_so_many_powers_of_two_below_a_quarter_of_the_largest_number():
    torch.manual_seed(0)
    model = nn.Sequential(Times(2.0**10), nn.Linear(16, 2))
    found = margin(measured(model, "half", steps=1)[0], "0", "result", "overflow")
    assert (found.value, found.fmt) == (1024.0, "fp16")
    assert found.bits == pytest.approx(math.log2(65504 / 1024) - 2)


def test_an_infinity_leaves_nothing():
    found = margin(
        measured(nn.Sequential(Times(math.inf), nn.Linear(16, 2)), "half", steps=1)[0], "0", "result", "overflow"
    )
    assert found.bits == -math.inf


def test_tiny_gradients_are_at_the_lower_limit():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    healthy = margin(measured(model, "half", steps=1)[0], "0", "gradient", "underflow")
    tiny = margin(measured(model, "half", steps=1, loss_factor=2.0**-16)[0], "0", "gradient", "underflow")
    assert healthy.bits > 0 > tiny.bits
    assert tiny.bits == pytest.approx(healthy.bits - 16, abs=0.1)


def test_formats_with_scales_have_accuracy_and_no_range():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    margins = measured(model, "nvfp4", steps=1)[0]
    assert {each.kind for each in margins} == {"accuracy"}
    assert {each.site for each in margins} == {"0"}, "the last 16 % are in bf16"
    weight = margin(margins, "0", "weight", "accuracy")
    assert (weight.fmt, 15 < weight.value < 25) == ("nvfp4-16x16", True)


@pytest.mark.parametrize("recipe", ["half", "nvfp4", "O1", "fp8"])
def test_every_nth_step_is_measured_and_nothing_changes(recipe: str):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    twin = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    twin.load_state_dict(model.state_dict())
    losses: list[float] = []
    found: dict[int, list[Margin]] = {}
    with measuring_margins(find_recipe(recipe), every=2, on_step=found.__setitem__):
        losses = train(model, steps=5)
    assert [*found] == [0, 2, 4]
    assert losses == train(twin, steps=5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_evaluation_is_not_measured():
    found: dict[int, list[Margin]] = {}
    model = nn.Linear(16, 2)
    with measuring_margins(find_recipe("half"), every=1, on_step=found.__setitem__), torch.no_grad():
        model(torch.ones(4, 16))
    assert not found
