"""Linear layers whose three products have formats of their own, and what each part of nvfp4 does."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.errors import RecipeError
from roundoff.formats import format_named, round_to
from roundoff.precision import OperandSettings, Recipe, apply_recipe, recipe_named, to_toml
from roundoff.precision.compute.linear_products import mix_samples
from roundoff.precision.recipe.toml import from_toml

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
