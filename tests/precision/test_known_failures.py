"""What is known to go wrong at low precision goes wrong here too, and the recipes that avoid it do."""

import math

import pytest
import torch
from torch.nn import functional as F

from roundoff.precision import apply_recipe
from tests.precision.small_trainings import accuracy, batch_of, prepared, small_net, train, weights_of

pytestmark = pytest.mark.filterwarnings("ignore:Adam's eps")
BOTH = pytest.mark.parametrize("arithmetic", ["emulated", "native"])


@BOTH
@pytest.mark.parametrize(
    ("recipe", "eps", "survives"), [("half", 1e-8, False), ("half", 1e-4, True), ("O2", 1e-8, True)]
)
def test_adam_in_fp16_is_not_finite_after_one_step_unless_eps_is_larger(recipe, eps, survives, arithmetic):
    model = small_net()
    inner = torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps)
    model, optimizer = apply_recipe(model, inner, recipe, arithmetic=arithmetic)
    train(model, optimizer, range(1))
    assert bool(torch.isfinite(weights_of(model)).all()) is survives


@BOTH
def test_o3_trains_on_large_inputs_but_cannot_evaluate(arithmetic: str):
    def bright(step: int):
        x, y = batch_of(step)
        return x * 1020, y

    results = {}
    for recipe in ("O2", "O3"):
        model, optimizer = prepared(recipe, arithmetic=arithmetic)
        losses = train(model, optimizer, range(40), batch=bright)
        results[recipe] = (losses[-1], accuracy(model, 1020), model[1].running_var.max().item())
    assert results["O2"][0] < 1.5
    assert results["O3"][0] < 1.5
    assert results["O3"][2] == math.inf
    assert math.isfinite(results["O2"][2])
    assert results["O3"][1] < 0.2 < 0.5 < results["O2"][1]


@BOTH
def test_a_tiny_loss_needs_a_loss_scale(arithmetic: str):
    accuracies = {}
    for recipe in ("half", "O2"):
        model = small_net()
        inner = torch.optim.SGD(model.parameters(), lr=1e4, momentum=0.9)
        model, optimizer = apply_recipe(model, inner, recipe, arithmetic=arithmetic)
        train(model, optimizer, range(40), loss_factor=1e-5)
        accuracies[recipe] = accuracy(model)
    assert accuracies["O2"] > 0.6
    assert accuracies["half"] < accuracies["O2"] - 0.2


def test_a_static_scale_breaks_when_the_batch_grows_and_a_dynamic_one_does_not():
    def summed_loss(size: int, scale: str, steps: int = 6) -> bool:
        model = small_net()
        inner = torch.optim.SGD(model.parameters(), lr=0.05 / size)
        model, optimizer = apply_recipe(model, inner, "O2", loss_scale=scale)
        for step in range(steps):
            x, y = batch_of(step, size)
            optimizer.backward(F.cross_entropy(model(x), y, reduction="sum"))
            optimizer.step()
            optimizer.zero_grad()
        return bool(torch.isfinite(weights_of(model)).all())

    assert summed_loss(16, "static:1024")
    assert not summed_loss(1024, "static:1024")
    assert summed_loss(1024, "dynamic", steps=12)


@pytest.mark.parametrize("recipe", ["O1", "O2", "amp-fp16"])
def test_an_outlier_batch_is_skipped_and_evaluation_stays_good(recipe: str):
    def batch(step: int):
        x, y = batch_of(step)
        return (x * 1e30 if step == 20 else x), y

    model, optimizer = prepared(recipe)
    train(model, optimizer, range(40), batch=batch)
    assert optimizer.num_skips == 1
    assert torch.isfinite(model[1].running_var).all()
    assert accuracy(model) > 0.6


@pytest.mark.parametrize("recipe", ["half", "O3"])
def test_an_outlier_batch_ruins_recipes_that_do_not_check(recipe: str):
    model, optimizer = prepared(recipe)
    train(model, optimizer, range(2), batch=lambda step: (batch_of(step)[0] * 1e30, batch_of(step)[1]))
    assert not torch.isfinite(weights_of(model)).all()


def mean_weight_after(recipe: str, *, steps: int = 400) -> float:
    """Return where 1.0 goes when 1e-4, far below half a unit of bf16, is added 400 times."""
    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.ones_(model.weight)
    torch.manual_seed(0)
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=1e-4), recipe)
    for _ in range(steps):
        model.weight.grad = torch.full_like(model.weight, -1.0)
        optimizer.step()
    return model.weight.mean().item()


def test_small_updates_vanish_in_bf16_and_not_with_stochastic_rounding_kahan_or_master_weights():
    assert mean_weight_after("bf16") == 1.0
    assert mean_weight_after("bf16-stochastic") == pytest.approx(1.04, abs=0.003)
    assert mean_weight_after("bf16-kahan") == pytest.approx(1.04, abs=0.008)
    assert mean_weight_after("bf16-master") == pytest.approx(1.04, abs=0.004)
