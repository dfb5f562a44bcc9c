"""Operands of products in fp8 and in microscaling blocks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from roundoff.formats import round_to
from roundoff.precision import OperandSettings, Recipe, apply_recipe
from roundoff.precision.compute.operands import OperandScales
from tests.precision.small_trainings import prepared, train


def linear_under(recipe: object, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Linear(64, 32, bias=False)
    return apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)[0]


def scaled_rounding(x: torch.Tensor, fmt: str, largest: float) -> torch.Tensor:
    scale = largest / x.abs().max()
    return round_to(x * scale, fmt) / scale


def test_fp8_multiplies_scaled_e4m3_operands_and_sends_back_e5m2():
    model = linear_under("fp8")
    x = torch.randn(16, 64, requires_grad=True)
    y = model(x)
    weight = scaled_rounding(model.weight.detach(), "e4m3", 448.0)
    rounded = scaled_rounding(x.detach(), "e4m3", 448.0)
    assert torch.equal(y, F.linear(rounded, weight))
    grad = torch.randn_like(y)
    y.backward(grad)
    rounded_grad = scaled_rounding(grad, "e5m2", 57344.0)
    assert torch.allclose(model.weight.grad, rounded_grad.T @ rounded, rtol=1e-5, atol=1e-5)
    assert torch.allclose(x.grad, rounded_grad @ weight, rtol=1e-5, atol=1e-5)


def test_mx_blocks_lie_along_the_contracted_axis():
    model = linear_under("mxfp8")
    x = torch.randn(16, 64)
    wanted = F.linear(round_to(x, "mxfp8"), round_to(model.weight.detach(), "mxfp8"))
    assert torch.equal(model(x), wanted)
    torch.manual_seed(0)
    conv = nn.Conv2d(40, 4, 3, bias=False)
    image = torch.randn(2, 40, 6, 6)
    wanted = F.conv2d(
        round_to(image.movedim(1, -1), "mxfp8").movedim(-1, 1),
        round_to(conv.weight.detach().movedim(1, -1), "mxfp8").movedim(-1, 1),
    )
    conv = apply_recipe(conv, torch.optim.SGD(conv.parameters(), lr=0.1), "mxfp8")[0]
    assert torch.allclose(conv(image), wanted, rtol=1e-5, atol=1e-5)


def test_delayed_scales_come_from_earlier_steps():
    scales = OperandScales("delayed", amax_history=2)
    from roundoff.formats import format_named

    e4m3 = format_named("e4m3")
    found = [448.0 / scales.scale(torch.tensor([amax]), e4m3, key="x").item() for amax in (2.0, 8.0, 1.0, 1.0, 1.0)]
    assert found == pytest.approx([2.0, 2.0, 8.0, 8.0, 1.0])


def test_what_outgrows_a_delayed_scale_saturates():
    model = linear_under("fp8-delayed")
    model(torch.ones(4, 64))
    big = model(torch.full((4, 64), 100.0))
    assert torch.allclose(big, model(torch.ones(4, 64)), rtol=0.05)


def test_histories_are_part_of_the_checkpoint():
    model, optimizer = prepared("fp8-delayed")
    train(model, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict()["roundoff"]["computation"])
    assert {"0.weight#0.first", "0.weight#0.second", "9.weight#0.gradient"} <= set(saved["amax_histories"])
    _, other_optimizer = prepared("fp8-delayed")
    other_optimizer.load_state_dict(optimizer.state_dict())
    again = other_optimizer.state_dict()["roundoff"]["computation"]["amax_histories"]
    assert all(torch.equal(again[key], value) for key, value in saved["amax_histories"].items())


@pytest.mark.parametrize("recipe", ["fp8", "fp8-delayed", "mxfp8"])
def test_infinities_and_nan_are_not_rounded_away(recipe: str):
    for bad in (torch.inf, -torch.inf, torch.nan):
        model = linear_under(recipe)
        x = torch.randn(4, 64)
        x[2, 3] = bad
        assert not torch.isfinite(model(x)[2]).all()


@pytest.mark.parametrize("recipe", ["fp8", "mxfp4"])
def test_zeros_and_empty_batches_pass(recipe: str):
    model = linear_under(recipe)
    assert not model(torch.zeros(4, 64)).any()
    assert model(torch.zeros(0, 64)).shape == (0, 32)


def test_attention_products_and_plain_matmuls_are_rounded():
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return torch.matmul(x, x.transpose(-1, -2)) @ self.weight

    torch.manual_seed(0)
    plain = Products()
    x = torch.randn(2, 8, 8)
    wanted = plain(x)
    model = apply_recipe(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "fp8")[0]
    error = (model(x) - wanted).norm() / wanted.norm()
    assert 0.005 < error < 0.1


def test_any_format_can_be_an_operand():
    for fmt in ("e3m2", "bf16", "mxfp6-e2m3"):
        scaling = "none" if fmt.startswith(("mx", "bf")) else "current"
        operands = OperandSettings(forward=fmt, backward=fmt, scaling=scaling)
        model, optimizer = prepared(Recipe(name="mine", compute="operands", operands=operands))
        losses = train(model, optimizer, range(15))
        assert losses[-1] < losses[0]


def test_the_ascend_profile_has_products_and_pooling_in_fp16_whatever_else():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.Softmax(-1))
    model, _ = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "ascend-fp16")
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    result = model(torch.randn(8, 64)).detach()
    assert torch.equal(seen[0], round_to(seen[0], "fp16"))
    assert not torch.equal(result, round_to(result, "fp16"))
    values = torch.tensor([[1.0, 1.0 + 2**-14, 1.0 + 2**-15]])

    class Top(nn.Module):
        def forward(self, x):
            return torch.topk(x, 1).values

    top = Top()
    top.weight = nn.Parameter(torch.ones(1))
    top, _ = apply_recipe(top, torch.optim.SGD(top.parameters(), lr=0.1), "ascend-fp16")
    assert top(values).item() == 1.0
