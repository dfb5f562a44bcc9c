"""What is predicted from one step, against what really rounding each site and each op does to the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.sensitivity import Sensitivity, effect_alone, loss_with, measuring_sensitivity, precision_loss
from roundoff.train.digits import load_digits
from roundoff.train.models.gpt import GPT
from roundoff.train.models.resnet import resnet_small

RunStep = Callable[[nn.Module], Tensor]


def small_gpt() -> tuple[nn.Module, RunStep]:
    torch.manual_seed(0)
    ids = torch.randint(0, 64, (16, 33))
    model = GPT(vocabulary=64, context=32, width=64)
    return model, lambda model: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).double(), ids[:, 1:].flatten())


def small_resnet() -> tuple[nn.Module, RunStep]:
    torch.manual_seed(0)
    images, labels = (x[:256] for x in load_digits())
    model = resnet_small(num_classes=10, channels=1, width=16)
    return model, lambda model: F.cross_entropy(model(images).double(), labels)


def measured_after_steps(model: nn.Module, run_step: RunStep, *, num_steps: int = 3) -> Sensitivity:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        run_step(model).backward()
        optimizer.step()
    optimizer.zero_grad()
    with measuring_sensitivity(step=0, formats=["bf16", "e4m3"]) as measured:
        run_step(model).backward()
    return measured.sensitivity


def rank_correlation(one: list[float], other: list[float]) -> float:
    ranks = torch.stack([torch.tensor(each, dtype=torch.float64).argsort().argsort() for each in (one, other)])
    return float(torch.corrcoef(ranks.double())[0, 1])


def leaf_sites(model: nn.Module, sensitivity: Sensitivity) -> list[str]:
    """Return the sites that compute something and hold no others."""
    computing = {effect.site for effect in sensitivity.effects if effect.part == "result"}
    return [name for name, module in model.named_modules() if name in computing and not any(module.children())]


@pytest.mark.slow
@pytest.mark.parametrize("net", [small_gpt, small_resnet])
@pytest.mark.parametrize("fmt", ["bf16", "e4m3"])
def test_predictions_rank_sites_as_really_rounding_them_does(net, fmt):
    model, run_step = net()
    found = measured_after_steps(model, run_step)
    sites = leaf_sites(model, found)
    true = effect_alone(model, run_step, fmt, sites)
    predicted = [found.loss_change(fmt, site=site) for site in sites]
    assert rank_correlation(predicted, list(true.values())) >= 0.95


@pytest.mark.slow
def test_predictions_of_single_ops_are_what_rounding_them_does():
    model, run_step = small_gpt()
    found = measured_after_steps(model, run_step)
    ops = {e.key for e in found.of("bf16") if e.part == "result" and e.site != "<loop>"}
    true = effect_alone(model, run_step, "bf16", sorted(ops))
    predicted = [found.loss_change_with({op: "bf16"}) for op in true]
    assert len(ops) == 39
    assert rank_correlation(predicted, list(true.values())) >= 0.99
    assert predicted == pytest.approx(list(true.values()), rel=0.05, abs=2e-7)


def test_the_shadow_run_is_the_step_with_every_site_rounded():
    model, run_step = small_resnet()
    found = measured_after_steps(model, run_step, num_steps=1)
    for fmt in found.formats:
        assert found.narrow_losses[fmt] == loss_with(model, run_step, {"*": fmt})


def test_the_parts_of_the_sites_add_up_to_the_measured_difference():
    found = measured_after_steps(*small_gpt(), num_steps=1)
    for fmt, tolerance in (("bf16", 0.02), ("e4m3", 0.15)):
        measured = found.narrow_losses[fmt] - found.loss
        assert sum(effect.part_of_all for effect in found.of(fmt)) == pytest.approx(measured, rel=tolerance)


def test_measuring_alone_leaves_the_model_as_it_was():
    model, run_step = small_resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    effects = effect_alone(model, run_step, "e4m3", ["stem.0", "head", "head:linear"])
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert effects["head"] == effects["head:linear"] != effects["stem.0"]


def test_where_something_overflows_there_is_no_loss_with_every_site_narrow():
    model, x = nn.Linear(4, 1), 300 * torch.ones(2, 4)
    with measuring_sensitivity(step=0, formats=["fp16", "bf16"]) as measured:
        (model(x) * 0 + (x * x).mean()).sum().backward()
    assert set(measured.sensitivity.narrow_losses) == {"bf16", "fp16"}  # the loop is not narrow

    class Squares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * x).mean()

    squares = nn.Sequential(nn.Linear(4, 4), Squares())
    with measuring_sensitivity(step=0, formats=["fp16", "bf16"]) as measured:
        (1.1 * squares(1e4 * x)).backward()
    assert set(measured.sensitivity.narrow_losses) == {"bf16"}
    for fmt in ("fp16", "bf16"):  # the loop's own product is no part of it
        assert {each.site for each in precision_loss(measured.sensitivity, fmt).sites} == {"0", "1"}
