"""Operands of products in fp8 and in microscaling blocks."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.errors import RecipeError
from roundoff.formats import format_named, round_to
from roundoff.precision import OperandSettings, Recipe, apply_recipe, recipe_named, to_toml
from roundoff.precision.compute.operands import OperandScales, mix_samples
from roundoff.precision.recipe.toml import from_toml
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


NEW = ["nvfp4", "fp8-block", "fp8-rowwise", "fp8-rowwise-gw", "fp8-hybrid", "int8"]
QAT = ["qat-int8", "qat-int4", "qat-nvfp4"]


def operands(recipe: str | Recipe, **changes: object) -> Recipe:
    found = recipe_named(recipe) if isinstance(recipe, str) else recipe
    return replace(found, operands=replace(found.operands, **changes))


def step(recipe: str | Recipe, *, features: int = 48, outputs: int = 32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return input, weight, and their gradients for an output gradient of 0.01 * normal; the input has leading axes."""
    torch.manual_seed(0)
    layer = nn.Linear(features, outputs)
    apply_recipe(layer, torch.optim.SGD(layer.parameters(), lr=0.1), recipe)
    x = torch.randn(4, 8, features, requires_grad=True)
    layer(x).backward(gradient_of(outputs))
    return x.detach(), layer.weight.detach(), x.grad, layer.weight.grad


def gradient_of(outputs: int) -> Tensor:
    return torch.randn(4, 8, outputs, generator=torch.Generator().manual_seed(1)) * 0.01


def along_rows(x: Tensor, name: str) -> Tensor:
    return round_to(x, replace(format_named(name), axis=0))  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["fp8-rowwise", "int8", "fp8-block"])
def test_every_product_rounds_along_what_it_sums_over(name: str):
    settings = recipe_named(name).operands
    x, weight, of_input, of_weight = step(name)
    grad = gradient_of(32)
    square = name == "fp8-block"
    narrow = round_to(weight, settings.weight) if square else along_rows(weight, settings.forward)
    assert torch.equal(of_input, round_to(grad, settings.backward) @ narrow)
    errors, samples = grad.view(-1, 32), x.view(-1, 48)
    expected = along_rows(errors, settings.weight_gradient).t() @ along_rows(samples, settings.weight_gradient)
    assert torch.equal(of_weight, expected)


def test_a_wide_weight_gradient_is_that_of_fp32():
    wanted, rounded = step("fp32")[3], step("fp8-rowwise")[3]
    for name in ("fp8-rowwise-gw", "fp8-hybrid"):
        assert torch.equal(step(name)[3], wanted)
        assert not torch.equal(step(name)[2], step("fp32")[2])
    assert not torch.equal(rounded, wanted)


def test_a_hybrid_has_e4m3_forward_and_e5m2_backward():
    _, weight, of_input, _ = step("fp8-hybrid")
    grad = gradient_of(32)
    into, back = 448 / weight.abs().max(), 57344 / grad.abs().max()
    expected = (round_to(grad * back, "e5m2") / back) @ (round_to(weight * into, "e4m3") / into)
    assert torch.allclose(of_input, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", QAT)
def test_qat_rounds_forward_and_lets_gradients_through(name: str):
    settings = recipe_named(name).operands
    x, weight, of_input, of_weight = step(name)
    grad = gradient_of(32)
    assert torch.allclose(of_input, grad @ round_to(weight, settings.weight), rtol=1e-5, atol=1e-7)
    samples = round_to(x, settings.forward).view(-1, 48)
    assert torch.allclose(of_weight, grad.view(-1, 32).t() @ samples, rtol=1e-5, atol=1e-6)


def test_mixing_samples_changes_no_product_and_spreads_an_outlier():
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.randn(40, 5)
    assert torch.allclose(mix_samples(x).t() @ mix_samples(y), x.t() @ y, atol=1e-4)
    assert torch.equal(mix_samples(x)[32:], x[32:])
    assert torch.equal(mix_samples(x[:5]), x[:5])
    outlier = torch.zeros(16, 1)
    outlier[3] = 16.0
    assert mix_samples(outlier).abs().max() == 4.0


def error_of(recipe: Recipe, part: int) -> float:
    """Return the relative error of a gradient against fp32."""
    wanted = step("fp32")[part]
    return float((step(recipe)[part] - wanted).norm() / wanted.norm())


def test_each_part_of_nvfp4_can_be_switched_and_changes_what_it_should():
    full = operands("nvfp4", wide_share=0.0)
    _, _, of_input, of_weight = step(full)
    nearest = step(operands(full, backward_rounding="nearest"))
    assert not torch.equal(nearest[2], of_input)
    plain = step(operands(full, backward_rounding="nearest", hadamard=False))
    assert torch.equal(plain[2], nearest[2])
    assert not torch.equal(plain[3], nearest[3])
    rows = step(operands(full, backward_rounding="nearest", weight="nvfp4"))
    assert not torch.equal(rows[2], nearest[2])
    assert torch.equal(rows[3], nearest[3])
    assert 0.01 < error_of(full, 2) < 0.3
    assert 0.01 < error_of(full, 3) < 0.3
    assert torch.isfinite(of_weight).all()


def test_the_last_layers_stay_wide():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    recipe = operands("qat-int4", wide_share=0.25)
    x = torch.randn(8, 16)
    apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)
    first, last = model[0](x), model[3](x)
    assert not torch.allclose(first, F.linear(x, model[0].weight, model[0].bias), atol=1e-2)
    bf16 = F.linear(x.bfloat16().float(), model[3].weight.bfloat16().float(), model[3].bias)
    assert torch.allclose(last, bf16, atol=1e-6)


def test_an_override_wins_over_the_share_of_wide_layers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply_recipe(model, optimizer, operands("nvfp4", wide_share=1.0), overrides={"1": "fp32"})
    x = torch.randn(8, 16)
    assert torch.equal(model[1](x), F.linear(x, model[1].weight, model[1].bias))


def test_products_without_a_weight_stay_wide():
    class Scores(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ x.transpose(-1, -2)

    x = torch.randn(2, 8, 16)
    model = nn.Sequential(nn.Linear(16, 16), Scores())
    apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "nvfp4")
    assert torch.equal(model[1](x), x @ x.transpose(-1, -2))


@pytest.mark.parametrize("name", [*NEW, *QAT])
def test_goes_to_toml_and_back(name: str):
    recipe = recipe_named(name)
    assert from_toml(to_toml(recipe), where="a", named=recipe_named) == recipe


def test_settings_that_make_no_sense_are_errors():
    with pytest.raises(RecipeError, match=r"operands\.hadamard = True is invalid"):
        OperandSettings(hadamard=True)
    with pytest.raises(RecipeError, match=r"operands\.wide_share = 2"):
        OperandSettings(wide_share=2.0)
    with pytest.raises(RecipeError, match=r"operands\.weight = 'e9'"):
        OperandSettings(weight="e9")
