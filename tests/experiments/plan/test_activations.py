"""Bits of saved activations under a budget, as a recipe that trains."""

from pathlib import Path

import pytest

from roundoff.errors import RecipeError
from roundoff.experiments.plan.plan_session import ActivationBudget
from roundoff.experiments.plan.planner import choose_activation_bits, with_activations
from roundoff.precision import find_recipe, to_toml
from roundoff.train import TrainConfig, train

SMALL = TrainConfig(width=4, limit=256, batch_size=64, threads=1, runs=None)


def test_a_share_is_met_and_the_recipe_saves_that_little(tmp_path: Path) -> None:
    plan = choose_activation_bits(SMALL, budget=ActivationBudget(share=0.2), step=1)
    assert plan.bytes_after <= plan.budget_bytes == int(0.2 * plan.bytes_before)
    assert len(set(plan.bits.values())) > 1  # not the same everywhere
    assert f"{plan.bytes_after} bytes instead of {plan.bytes_before}" in plan.evidence()[0][1]

    file = tmp_path / "planned.toml"
    file.write_text(to_toml(with_activations(find_recipe("fp32"), plan)))
    result = train(TrainConfig(width=4, limit=256, batch_size=64, threads=1, runs=None, steps=2, recipe=str(file)))
    assert result.saved_activation_bytes == plan.bytes_after


def test_a_budget_in_bytes_is_taken_as_it_is() -> None:
    plan = choose_activation_bits(SMALL, budget=ActivationBudget(num_bytes=10**9), step=0)
    assert plan.budget_bytes == 10**9
    assert set(plan.bits.values()) == {32}


def test_a_budget_that_is_too_small_is_an_error() -> None:
    with pytest.raises(RecipeError, match="do not fit into 10 bytes"):
        choose_activation_bits(SMALL, budget=ActivationBudget(num_bytes=10), step=0)
