"""What the environment requests of every recipe: another recipe, and scales that stay as they are."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from roundoff.errors import RecipeError
from roundoff.precision import apply_recipe, recipe_named, scale_settings, to_toml
from roundoff.precision.loss_scaler import LossScaler
from roundoff.precision.recipe.recipe_environment import changing_recipes, freezing_scales
from tests.precision.small_trainings import IMAGES, prepared, sgd, small_net, train


def test_the_environments_recipe_takes_the_place_of_the_one_that_is_applied(monkeypatch):
    monkeypatch.setenv("ROUNDOFF_RECIPE", "half+act4")
    model, optimizer = prepared("fp32")
    assert optimizer.recipe == recipe_named("half+act4")
    assert torch.equal(model[9].weight, model[9].weight.half().float())


def test_it_brings_its_own_loss_scale_overrides_and_arithmetic(monkeypatch):
    monkeypatch.setenv("ROUNDOFF_RECIPE", "O2")
    _, optimizer = prepared("half", loss_scale=128.0, overrides={"4": "bf16"}, arithmetic="native")
    assert optimizer.recipe == recipe_named("O2")
    assert optimizer.scale == 65536.0


def test_it_may_be_a_file_and_overrides_of_the_environment_come_on_top(monkeypatch, tmp_path: Path):
    path = tmp_path / "planned.toml"
    path.write_text(to_toml(replace(recipe_named("O2"), name="planned", overrides={"4": "bf16", "9": "bf16"})))
    monkeypatch.setenv("ROUNDOFF_RECIPE", str(path))
    monkeypatch.setenv("ROUNDOFF_OVERRIDES", json.dumps({"9": "fp32"}))
    _, optimizer = prepared("fp32", overrides={"0": "e4m3"})
    assert optimizer.recipe.name == "planned"
    assert optimizer.recipe.overrides == {"4": "bf16", "9": "fp32"}


@pytest.mark.parametrize("text", ["O7", "nowhere.toml"])
def test_a_recipe_that_does_not_exist_is_reported_with_the_variable(monkeypatch, text: str):
    monkeypatch.setenv("ROUNDOFF_RECIPE", text)
    with pytest.raises(RecipeError, match=f"In the environment variable ROUNDOFF_RECIPE: .*'{text}'"):
        prepared("fp32")


def test_an_empty_file_is_reported_instead_of_training_in_fp32(monkeypatch, tmp_path: Path):
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("ROUNDOFF_RECIPE", str(tmp_path / "empty.toml"))
    with pytest.raises(RecipeError, match=r"In the environment variable ROUNDOFF_RECIPE: .*empty\.toml' is empty"):
        prepared("O2")


def test_an_empty_variable_says_nothing(monkeypatch):
    monkeypatch.setenv("ROUNDOFF_RECIPE", "")
    assert prepared("O2")[1].recipe == recipe_named("O2")


def test_a_block_changes_the_recipes_that_are_applied_in_it():
    with changing_recipes(lambda recipe: recipe_named("bf16") if recipe.name == "half" else recipe):
        assert prepared("half")[1].recipe.name == "bf16"
        assert prepared("O2")[1].recipe.name == "O2"
    assert prepared("half")[1].recipe.name == "half"


def test_a_frozen_loss_scale_neither_falls_nor_grows():
    settings = replace(scale_settings("dynamic"), interval=3)
    scaler = LossScaler(settings)
    with freezing_scales(after=1):
        scaler.update(overflow="head.weight")
        assert scaler.scale == 32768.0
        scaler.update(overflow="head.weight")
        for _ in range(4):
            scaler.update(overflow=None)
        assert scaler.scale == 32768.0
    scaler.update(overflow=None)
    assert scaler.scale == 65536.0


def test_a_loss_scale_can_be_frozen_at_a_number():
    with freezing_scales(after=0, loss_scale=512.0):
        assert LossScaler(scale_settings("dynamic")).scale == 512.0
        assert LossScaler(scale_settings(128)).scale == 128.0


@pytest.mark.parametrize("recipe", ["fp8", "fp8-delayed", "fixed"])
def test_scales_that_follow_the_data_stay_as_they_are(recipe: str):
    def first_layer(*, factors: list[float]) -> list[torch.Tensor]:
        model = small_net()
        seen = []
        model[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().abs().max()))
        model, optimizer = apply_recipe(model, sgd(model, lr=0.0), recipe)
        train(model, optimizer, range(len(factors)), batch=lambda step: (IMAGES[:8] * factors[step], torch.arange(8)))
        return seen

    factors = [1.0, 1.0, 64.0, 64.0]
    free = first_layer(factors=factors)
    with freezing_scales(after=1):
        frozen = first_layer(factors=factors)
    assert free[3] > 20 * free[0]
    # What is beyond a frozen scale saturates.
    assert frozen[3] < 3 * frozen[0]
    assert frozen[0] == free[0]


def test_freezing_changes_nothing_where_scales_do_not_follow():
    with freezing_scales(after=0):
        frozen = train(*prepared("half"), range(3))
    assert frozen == train(*prepared("half"), range(3))
