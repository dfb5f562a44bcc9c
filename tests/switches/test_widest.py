"""The switch `widest`: recipes, casts and autocast with as many bits as there are."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.errors import SwitchError
from roundoff.precision import apply_recipe, known_recipes, recipe_named
from roundoff.precision.fixed import FixedPointSettings, TensorSetting
from roundoff.switches import switching
from roundoff.switches.widest import widest_of_its_kind


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 8, generator=generator), torch.randint(0, 4, (12,), generator=generator)


def losses_under(recipe: object, **settings: object) -> list[float]:
    model = net()
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe, **settings)
    losses = []
    x, y = batch()
    for _ in range(4):
        loss = F.cross_entropy(model(x), y)
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", [*(recipe.name for recipe in known_recipes()), "O2+act4"])
def test_every_recipe_trains_as_fp32(recipe: str):
    expected = losses_under("fp32")
    with switching({"widest": "fp32"}):
        assert losses_under(recipe) == expected


def test_exceptions_and_arithmetic_are_fp32_too():
    expected = losses_under("fp32")
    with switching({"widest": "fp32"}):
        assert losses_under("half", overrides={"0": "e4m3"}, arithmetic="native", loss_scale=128) == expected


@pytest.mark.parametrize("recipe", ["O1", "O2", "bf16", "amp-fp16", "fp8", "mxfp4", "half"])
def test_the_own_widest_of_a_float_recipe_is_fp32_with_its_loss_scale(recipe: str):
    expected = losses_under("fp32", loss_scale=recipe_named(recipe).loss_scale)
    with switching({"widest": "own"}):
        assert losses_under(recipe) == expected


def test_fixed_point_stays_fixed_point_with_24_bits():
    narrow, expected = losses_under("fixed"), losses_under("fp32")
    with switching({"widest": "own"}):
        wide = losses_under("fixed")
    assert wide != expected
    assert wide == pytest.approx(expected, rel=1e-4)
    assert narrow != pytest.approx(expected, rel=1e-4)


def test_bits_of_types_and_sites_are_widened():
    from dataclasses import replace

    table = {"weight": {"bits": 4}, "sites": {"0": {"activation": {"bits": 2, "range": "sweep"}}}, "norms": "quantized"}
    wide = widest_of_its_kind(replace(recipe_named("fixed"), fixed=FixedPointSettings.from_dict(table))).fixed
    assert wide.weight == TensorSetting(bits=24)
    assert wide.error == TensorSetting(bits=24)
    assert wide.sites == {"0": {"activation": TensorSetting(bits=24, range="sweep")}}
    assert wide.norms == "quantized"


def test_saved_activations_take_their_most_bits():
    assert widest_of_its_kind(recipe_named("bf16+act2")).activation_bits == 8
    assert widest_of_its_kind(recipe_named("bf16")).activation_bits == 0


def test_autocast_does_nothing_wherever_it_was_entered():
    model, (x, _) = net(), batch()
    expected = model(x)
    with switching({"widest": "fp32"}):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = model(x)

        @torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        def decorated() -> Tensor:
            return model(x)

        assert torch.equal(decorated(), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16), switching({"widest": "fp32"}):
        around = model(x)
    assert torch.equal(inside, expected)
    assert torch.equal(around, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(x).dtype is torch.bfloat16


@pytest.mark.parametrize(
    "narrow",
    [
        lambda model, x: (model.half(), x.half()),
        lambda model, x: (model.bfloat16(), x.bfloat16()),
        lambda model, x: (model.to(torch.float16), x.to(torch.float16)),
        lambda model, x: (model.to("cpu", torch.bfloat16), x.to(dtype=torch.bfloat16)),
        lambda model, x: (model, x.type(torch.bfloat16)),
        lambda model, x: (model, x.to(torch.zeros(1, dtype=torch.float16))),
    ],
)
def test_casts_of_a_script_give_fp32(narrow):
    x, y = batch()
    expected = F.cross_entropy(net()(x), y)
    with switching({"widest": "fp32"}):
        model, x = narrow(net(), x)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    assert torch.equal(loss, expected)
    assert all(p.dtype is p.grad.dtype is torch.float32 for p in model.parameters())


def test_what_is_made_narrow_is_made_in_fp32():
    with switching({"widest": "fp32"}):
        made = [
            torch.zeros(2, dtype=torch.float16),
            torch.tensor([1.0], dtype=torch.bfloat16),
            torch.empty_like(torch.ones(2), dtype=torch.float8_e4m3fn),
            nn.Linear(2, 2, dtype=torch.bfloat16).weight,
        ]
        torch.set_default_dtype(torch.bfloat16)
        made.append(torch.zeros(2))
    assert {x.dtype for x in made} == {torch.float32}
    assert torch.get_default_dtype() is torch.float32


def test_a_model_that_is_narrow_already_computes_in_fp32_and_keeps_its_weights():
    model, (x, _) = net().half(), batch()
    wide = net()
    wide.load_state_dict(model.state_dict())
    with switching({"widest": "fp32"}):
        output = model(x.half())
        output.sum().backward()
    assert torch.equal(output, wide(x))
    assert model[0].weight.dtype is model[0].weight.grad.dtype is torch.float16


def test_what_is_wide_anyway_stays_as_it_is_bit_for_bit():
    x = torch.randn(6, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    expected = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
    with switching({"widest": "fp32"}):
        found = torch.autograd.grad(model(x).square().sum(), [*model.parameters()])
        assert torch.zeros(2, dtype=torch.int32).view(torch.float16).dtype is torch.float16
        assert torch.zeros(2, dtype=torch.float64).dtype is torch.float64
    assert all(map(torch.equal, expected, found))


def test_compiled_models_are_widened_too():
    model, (x, _) = net(), batch()
    expected = model(x)
    compiled = torch.compile(lambda x: model(x.half()), backend="aot_eager")
    with switching({"widest": "fp32"}):
        assert torch.allclose(compiled(x), expected)


def test_only_these_two_values_exist():
    with pytest.raises(SwitchError) as caught, switching({"widest": "fp64"}):
        pass
    assert str(caught.value) == (
        "Invalid value 'fp64' of the switch widest.\n"
        "  why: it is 'fp32', or 'own' for the widest version of each recipe."
    )
