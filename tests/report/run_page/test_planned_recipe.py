"""A run finds the plan that its recipe came from."""

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import planned_recipe as recipe_of
from roundoff.experiments.plan.proposal_recipe import recipe_text
from roundoff.precision import find_recipe, to_toml
from roundoff.precision.recipe.recipe import Recipe
from roundoff.report.run_page.setup import overrides_of, planned_recipe
from tests.experiments.measured_steps import effect, rounded, small_gpt


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """The recipe of a plan in tmp_path/plan-1."""
    overflow = effect("blocks.1.attn", "matmul", absmax=3e6, value=rounded(overflow=0.2))
    lossy = effect("head", "linear", part="weight", loss_change=0.3)
    proposal = propose(small_gpt(overflow, lossy), formats=["fp16"], target=Target(loss=0.005))
    recipe = replace(recipe_of(proposal, find_recipe("half"), name="recipe"), description="planned for train.py")
    folder = tmp_path / "plan-1"
    folder.mkdir()
    (folder / "plan.json").write_text("{}")
    (folder / "recipe.toml").write_text(
        recipe_text(recipe, proposal, evidence=["Planned for: train.py", "", "verified"])
    )
    return recipe


def test_the_evidence_of_the_plan_next_to_the_run_is_found_under_any_name(tmp_path: Path, recipe: Recipe):
    found = planned_recipe(tmp_path / "train-1", to_toml(dataclasses.replace(recipe, name="mine", description="")))
    assert found is not None
    assert found.path == tmp_path / "plan-1" / "recipe.toml"
    assert found.evidence == "Planned for: train.py\n\nverified"
    assert (
        found.reasons["blocks.1.attn"] == "matmul overflow: its result reaches 3e+06, the largest fp16 number is 65504"
    )
    assert found.reasons["head"].startswith("linear would change the loss by 0.3 in fp16")
    assert set(found.reasons) == set(recipe.overrides) == set(overrides_of(found.text))


def test_a_trial_inside_the_plans_own_folder_finds_it(tmp_path: Path, recipe: Recipe):
    assert planned_recipe(tmp_path / "plan-1" / "trials" / "3" / "run", to_toml(recipe)) is not None


def test_another_recipe_did_not_come_from_it(tmp_path: Path, recipe: Recipe):
    other = dataclasses.replace(recipe, overrides={**recipe.overrides, "head": "bf16"})
    assert planned_recipe(tmp_path / "train-1", to_toml(other)) is None
    assert planned_recipe(tmp_path / "train-1", to_toml(find_recipe("O2"))) is None


def test_what_cannot_be_read_is_no_plan(tmp_path: Path, recipe: Recipe):
    (tmp_path / "plan-1" / "recipe.toml").write_bytes(b"\xff\xfe = [")
    assert planned_recipe(tmp_path / "train-1", to_toml(recipe)) is None
    assert planned_recipe(tmp_path / "train-1", "= broken") is None
    assert overrides_of("= broken") == {}
