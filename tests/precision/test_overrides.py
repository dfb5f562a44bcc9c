"""Sites that are exceptions, under every way of computing."""

import json

import pytest
import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.formats import round_to
from roundoff.precision import apply_recipe
from tests.precision.small_trainings import IMAGES, prepared, sgd, small_net, train

WAYS = [(name, "auto") for name in ("O1", "O2", "half", "bf16", "amp-fp16", "fp8", "mxfp4", "fixed", "O2+act4")]
WAYS += [(name, "native") for name in ("O1", "O2", "half", "bf16")]


class Overflowing(nn.Module):
    """A layer whose result is beyond fp16, and one after it that brings it back."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Sequential(nn.Linear(64, 8, bias=False), nn.Identity())
        self.head = nn.Linear(8, 10)
        nn.init.constant_(self.large[0].weight, 1e4)

    def forward(self, x):
        return self.head(self.large(x.flatten(1)) * 1e-5)


@pytest.mark.parametrize(("recipe", "arithmetic"), WAYS, ids=lambda value: value)
def test_a_site_kept_in_fp32_trains(recipe: str, arithmetic: str):
    model, optimizer = prepared(recipe, overrides={"4": "fp32", "9": "fp32"}, arithmetic=arithmetic)
    losses = train(model, optimizer, range(12))
    assert losses[-1] < losses[0]
    assert model[4].weight.dtype is torch.float32


@pytest.mark.parametrize("arithmetic", ["emulated", "native"])
@pytest.mark.parametrize("recipe", ["O1", "half"])
def test_an_override_saves_the_inside_of_a_site_that_overflows(recipe: str, arithmetic: str):
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = Overflowing()

        def forward(self, x):
            return self.wide(x)

    finite = []
    for overrides in ({}, {"wide": "fp32"}):
        torch.manual_seed(0)
        model = Inside()
        model, _ = apply_recipe(model, sgd(model), recipe, overrides=overrides, arithmetic=arithmetic)
        finite.append(bool(torch.isfinite(model(IMAGES[:8])).all()))
    assert finite == [False, True]


def test_a_single_narrow_site_in_an_fp32_model():
    model, optimizer = prepared("fp32", overrides={"9": "e4m3"})
    seen = {}
    model[9].register_forward_hook(lambda module, args, output: seen.update(output=output, input=args[0]))
    model[4].register_forward_hook(lambda module, args, output: seen.update(before=output))
    model(IMAGES[:16])
    assert torch.equal(seen["output"].detach(), round_to(seen["output"].detach(), "e4m3"))
    assert not torch.equal(seen["before"].detach(), round_to(seen["before"].detach(), "bf16"))
    assert optimizer.arithmetic == "emulated"
    losses = train(model, optimizer, range(25))
    assert losses[-1] < losses[0]


def test_a_site_of_another_narrow_format_takes_and_gives_numbers_of_it():
    model, _ = prepared("half", overrides={"4": "bf16"}, arithmetic="emulated")
    seen = {}
    model[3].register_forward_hook(lambda module, args, output: seen.update(before=output.detach()))
    model[4].register_forward_hook(lambda module, args, output: seen.update(input=args[0].detach()))
    model[5].register_forward_hook(lambda module, args, output: seen.update(after=args[0].detach()))
    model(IMAGES[:16])
    assert torch.equal(seen["input"], round_to(seen["before"], "bf16"))
    assert torch.equal(seen["after"], round_to(seen["after"], "bf16"))
    assert torch.equal(seen["after"], round_to(seen["after"], "fp16"))


def test_the_last_matching_pattern_counts_and_what_is_below_follows():
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 8)), nn.Linear(8, 10))
    model, _ = apply_recipe(
        model, sgd(model), "half", overrides={"*": "fp32", "0": "bf16", "0.1": "fp32"}, arithmetic="native"
    )
    assert [p.dtype for p in (model[0][0].weight, model[0][1].weight, model[1].weight)] == [
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]


@pytest.mark.parametrize("recipe", ["fp32", "O1", "O2", "amp-fp16", "fp8", "fixed"])
def test_a_pattern_that_matches_nothing_is_an_error_and_leaves_the_model_alone(recipe: str):
    model = small_net()
    with pytest.raises(RecipeError) as caught:
        apply_recipe(model, sgd(model), recipe, overrides={"blocks.*.attn": "fp32"})
    assert str(caught.value) == (
        'The override "blocks.*.attn" = "fp32" matches no site of Sequential.\n'
        "  why: its sites are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.\n"
        "  fix: sites are the names of named_modules(); * matches anything: 'blocks.*.attn'."
    )
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model[0].weight.dtype is torch.float32


def test_the_environment_steers_an_unchanged_script(monkeypatch):
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", json.dumps({"9": "fp32"}))
    model, optimizer = prepared("half", arithmetic="native")
    assert model[9].weight.dtype is torch.float32
    assert model[4].weight.dtype is torch.float16
    assert "override    9 = fp32" in optimizer.report()


def test_a_format_no_device_has_is_emulated_or_an_error():
    assert prepared("O2", overrides={"9": "e4m3"})[1].arithmetic == "emulated"
    with pytest.raises(RecipeError, match="cannot be computed natively"):
        prepared("O2", overrides={"9": "e4m3"}, arithmetic="native")
    with pytest.raises(RecipeError, match="a site can be fp32, fp16 or bf16"):
        prepared("amp-fp16", overrides={"9": "e4m3"})
    with pytest.raises(RecipeError, match="cannot be emulated"):
        prepared("amp-fp16", arithmetic="emulated")


def test_an_override_of_a_list_of_modules_is_one_of_the_modules_in_it():
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    def output(overrides: dict[str, str]) -> torch.Tensor:
        torch.manual_seed(0)
        model = Stack()
        apply_recipe(model, sgd(model), "fp32", overrides=overrides)
        return model(torch.ones(2, 4)).detach()

    narrow = output({"blocks.0": "e4m3", "blocks.1": "e4m3"})
    assert torch.equal(output({"blocks": "e4m3"}), narrow)
    assert torch.equal(output({"*": "e4m3"}), narrow)
    assert not torch.equal(output({}), narrow)
