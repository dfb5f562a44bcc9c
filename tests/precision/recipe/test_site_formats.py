"""Layers that stay wide because of what they do, whatever their names are."""

import pytest
import torch
from torch import Tensor, nn

from roundoff.errors import RecipeError
from roundoff.precision import Recipe, apply_recipe, recipe_named, to_toml
from roundoff.precision.recipe.site_formats import layers_with_roles
from roundoff.precision.recipe.toml import from_toml
from tests.precision.small_trainings import sgd, small_net


class Experts(nn.Module):
    """Four experts in a list; `pick` routes."""

    def __init__(self) -> None:
        super().__init__()
        self.pick, self.mix = nn.Linear(8, 4), nn.Linear(8, 8)
        self.several = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.pick(x).softmax(-1)
        outputs = torch.stack([each(x) for each in self.several], -1)
        return self.mix((outputs * shares.unsqueeze(-2)).sum(-1))


class Stacked(nn.Module):
    """Six experts in one weight; `chooser` routes."""

    def __init__(self) -> None:
        super().__init__()
        self.chooser = nn.Linear(8, 6)
        self.weights = nn.Parameter(torch.randn(6, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("be,bi,eij->bj", self.chooser(x).softmax(-1), x, self.weights)


class Words(nn.Module):
    """A language model whose last layer in the list of modules is not its head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.to_words = nn.Linear(8, 50)
        self.blocks = nn.Sequential(Experts(), Stacked(), nn.Linear(8, 8))

    @staticmethod
    def pick_of_seed_0() -> Tensor:
        torch.manual_seed(0)
        return Words().blocks[0].pick.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.to_words(self.blocks(self.words(ids)))


def test_finds_routers_and_the_head_by_their_shape():
    assert [*layers_with_roles(Words(), ["router"])] == ["blocks.0.pick", "blocks.1.chooser"]
    assert [*layers_with_roles(Words(), ["head"])] == ["to_words"]
    assert [*layers_with_roles(small_net(), ["head"])] == ["9"]
    assert [*layers_with_roles(nn.ModuleList([small_net(), Words()]), ["head"])] == ["0.9", "1.to_words"]


@pytest.mark.parametrize("name", ["O1", "O2", "half", "bf16", "amp-bf16", "nvfp4", "mxfp4", "fixed"])
def test_the_head_computes_in_fp32_and_its_outputs_stay_wide(name: str):
    torch.manual_seed(0)
    model = Words()
    seen = {}
    apply_recipe(model, sgd(model), name, wide=["router", "head"])
    model.to_words.register_forward_pre_hook(lambda module, args: seen.update(x=args[0].detach().float()))
    output = model(torch.arange(20)).detach()
    layer = model.to_words
    assert torch.allclose(output, nn.functional.linear(seen["x"], layer.weight, layer.bias).detach(), atol=1e-6)


@pytest.mark.parametrize("arithmetic", ["native", "emulated"])
@pytest.mark.parametrize("name", ["O1", "O2", "half", "bf16"])
def test_a_model_with_wide_routers_trains(name: str, arithmetic: str):
    torch.manual_seed(0)
    model = Words()
    model, optimizer = apply_recipe(
        model, torch.optim.SGD(model.parameters(), lr=0.1), name, wide=["router", "head"], arithmetic=arithmetic
    )
    assert torch.equal(model.blocks[0].pick.weight, Words.pick_of_seed_0())
    losses = []
    for _ in range(15):
        loss = nn.functional.cross_entropy(model(torch.arange(20)), torch.arange(20))
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_an_override_wins_over_a_role():
    model = small_net()
    _, optimizer = apply_recipe(model, sgd(model), "half", wide=["head"], overrides={"9": "bf16"})
    assert "override    9 = bf16" in optimizer.report()


def test_roles_go_to_toml_and_back():
    recipe = Recipe(name="a", wide=("router", "head"))
    assert from_toml(to_toml(recipe), where="a", named=recipe_named) == recipe
    model = small_net()
    _, optimizer = apply_recipe(
        model, sgd(model), from_toml('base = "O2"\nwide = ["head"]', where="a", named=recipe_named)
    )
    assert optimizer.recipe.overrides == {"9": "fp32"}


def test_a_role_that_no_layer_has_is_an_error():
    model = small_net()
    with pytest.raises(RecipeError, match="No layer of Sequential has the role 'router'"):
        apply_recipe(model, sgd(model), "O2", wide=["router"])
    with pytest.raises(RecipeError, match="wide = 'tail' is invalid"):
        Recipe(name="a", wide=("tail",))
    with pytest.raises(RecipeError, match="wide = 'head' is invalid"):
        Recipe(name="a", wide="head")
