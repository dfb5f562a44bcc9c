"""Bits and ranges for fixed point, as a recipe that trains."""

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.experiments.plan.fixed_bits import FixedChoice, FixedPlan, measure_and_choose_fixed
from roundoff.experiments.plan.plan_session import Target
from roundoff.precision import find_recipe, to_toml
from roundoff.precision.fixed import TensorSetting
from roundoff.train import TrainConfig, train

SMALL = TrainConfig(width=4, limit=256, batch_size=64, threads=1, runs=None)


@pytest.fixture(scope="module")
def eight_bits() -> FixedPlan:
    return measure_and_choose_fixed(SMALL, bits=8, target=Target(loss=0.01), step=1)


def test_every_layer_gets_bits_and_a_range(eight_bits: FixedPlan) -> None:
    found = {(each.site, each.kind) for each in eight_bits.choices}
    assert {("head", "weight"), ("head", "activation"), ("head", "gradient"), ("head", "error")} <= found
    assert len({each.range for each in eight_bits.choices}) > 1
    assert eight_bits.loss_change <= 0.01 * eight_bits.loss


def test_fewer_bits_are_answered_by_wider_tensors(eight_bits: FixedPlan) -> None:
    four_bits = measure_and_choose_fixed(SMALL, bits=4, target=Target(loss=0.01), step=1)
    assert {each.bits for each in four_bits.choices} > {4}
    assert four_bits.loss_change <= 0.01 * four_bits.loss


def test_the_recipe_trains(eight_bits: FixedPlan, tmp_path: Path) -> None:
    file = tmp_path / "planned.toml"
    file.write_text(to_toml(eight_bits.recipe(name="planned")))
    assert find_recipe(file).compute == "fixed"
    config = replace(SMALL, epochs=4)
    losses, plain = train(replace(config, recipe=str(file))).losses, train(config).losses
    assert losses[-1] < losses[0]
    assert losses[-1] == pytest.approx(plain[-1], rel=0.05)


def test_only_what_differs_is_written_and_outer_sites_come_first() -> None:
    def choice(site: str, bits: int, kind: str = "activation") -> FixedChoice:
        return FixedChoice(site=site, kind=kind, bits=bits, range="max", error=0.1)

    plan = FixedPlan(
        bits=8,
        choices=(choice("block.fc", 8), choice("block", 12), choice("head", 8), choice("head", 10, "weight")),
        loss=1.0,
        loss_change=0.1,
    )
    sites = plan.settings().sites
    assert list(sites) == ["block", "head", "block.fc"]
    assert sites["block"] == {"activation": TensorSetting(bits=12)}
    assert sites["block.fc"] == {"activation": TensorSetting(bits=8)}
    assert sites["head"] == {"weight": TensorSetting(bits=10)}
