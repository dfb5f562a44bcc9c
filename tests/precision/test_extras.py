"""What a recipe adds besides formats: bits of saved activations, for all sites or for each."""

import pytest
import torch
from torch import nn

from roundoff.errors import RecipeError
from roundoff.precision import Recipe, apply_recipe, recipe_named, to_toml
from roundoff.precision.activations import CompressedActivations
from roundoff.precision.recipe.toml import from_toml


def bits_saved(recipe: Recipe) -> dict[str, int]:
    """Train one step, and return the bits at which each site saved its activations."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)
    optimizer.backward(model(torch.randn(64, 64)).square().mean())
    (compressed,) = [extra for extra in optimizer.extras if isinstance(extra, CompressedActivations)]
    return {site.site: site.bits for site in compressed.report().sites}


def test_one_number_of_bits_is_for_every_site():
    assert set(bits_saved(Recipe(name="a", activation_bits=4)).values()) == {4}


def test_sites_can_have_bits_of_their_own():
    bits = bits_saved(Recipe(name="a", activation_bits=4, activation_sites={"1": 8, "3": 32}))
    assert (bits["0"], bits["1"], bits["3"]) == (4, 8, 32)


def test_sites_that_no_pattern_matches_are_left_alone():
    bits = bits_saved(Recipe(name="a", activation_sites={"1": 2}))
    assert (bits["0"], bits["1"]) == (32, 2)


def test_bits_by_site_go_to_toml_and_back():
    recipe = Recipe(name="a", activation_sites={"blocks.*.attn": 8, "head": 32})
    assert '[activation_sites]\n"blocks.*.attn" = 8\nhead = 32' in to_toml(recipe)
    assert from_toml(to_toml(recipe), where="a", named=recipe_named) == recipe


def test_the_fewest_bits_are_those_that_compress():
    assert Recipe(name="a").least_activation_bits == 0
    assert Recipe(name="a", activation_sites={"0": 32}).least_activation_bits == 0
    assert Recipe(name="a", activation_bits=8, activation_sites={"0": 4, "1": 32}).least_activation_bits == 4


def test_invalid_bits_are_reported_with_their_line():
    text = 'name = "a"\n[activation_sites]\n"blocks.*" = 3\n'
    with pytest.raises(RecipeError, match=r"'mine.toml' line 3: .*activation_sites.\"blocks.\*\" = 3 is invalid"):
        from_toml(text, where="mine.toml", named=recipe_named)
