"""The recipe that a plan writes reads back as what was planned, with the evidence as comments."""

from dataclasses import replace
from pathlib import Path

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import (
    can_be_safer,
    check_base,
    formats_of,
    planned_recipe,
    recipe_text,
    rounded_ops,
)
from roundoff.experiments.plan.site_choices import Proposal
from roundoff.precision import find_recipe
from roundoff.precision.recipe.toml import from_toml
from roundoff.sensitivity.effects import LossEffect
from tests.experiments.measured_steps import effect, measured, rounded, small_gpt

OVERFLOW = effect("blocks.1.attn", "matmul", absmax=3e6, value=rounded(overflow=0.2))
LOSSY = effect("head", "linear", part="weight", loss_change=0.3)


def proposal_of(*changed: LossEffect) -> Proposal:
    return propose(small_gpt(*changed), formats=["fp16"], target=Target(loss=0.005))


def test_what_is_written_reads_back_as_the_recipe(tmp_path: Path) -> None:
    proposal = proposal_of(OVERFLOW, LOSSY)
    recipe = planned_recipe(proposal, find_recipe("half"), name="planned")
    text = recipe_text(recipe, proposal, evidence=["Planned."])
    assert from_toml(text, where="planned.toml", named=find_recipe) == recipe
    (tmp_path / "planned.toml").write_text(text)
    assert find_recipe(tmp_path / "planned.toml") == recipe


def test_the_evidence_is_above_what_it_is_about() -> None:
    proposal = proposal_of(OVERFLOW, LOSSY)
    recipe = planned_recipe(proposal, find_recipe("half"), name="planned")
    lines = recipe_text(recipe, proposal, evidence=["Planned for train.py", "", "Verified."]).splitlines()
    assert lines[:5] == ["# Planned for train.py", "#", "# Verified.", "", 'name = "planned"']
    place = lines.index('"blocks.1.attn" = "fp32"')
    assert lines[place - 1] == "# matmul overflow: its result reaches 3e+06, the largest fp16 number is 65504"
    place = lines.index('head = "fp32"')
    assert lines[place - 1].startswith("# linear would change the loss by 0.3 in fp16")
    assert any(line.split() == ["#", "blocks.0.attn.qkv", "fp16", "768", "1.41e-06"] for line in lines)


def test_an_op_has_its_own_line_and_reason() -> None:
    lossy = effect("<model>", "mul", loss_change=0.5)
    proposal = propose(measured(effect("<model>", "add"), lossy), formats=["fp16"], target=Target(loss=0.005))
    text = recipe_text(planned_recipe(proposal, find_recipe("half"), name="planned"), proposal, evidence=[])
    assert (
        "# mul would change the loss by 0.5 in fp16; the target is the loss within 0.5 % of fp32 in one step\n" in text
    )
    assert '"<model>:mul" = "fp32"\n' in text
    assert planned_recipe(proposal, find_recipe("amp-fp16"), name="planned").overrides == {}


def test_what_stays_narrow_inside_a_wide_site_says_so() -> None:
    proposal = proposal_of(OVERFLOW)
    recipe = planned_recipe(proposal, find_recipe("half"), name="planned")
    assert recipe.overrides == {
        "blocks.1.attn": "fp32",
        "blocks.1.attn.qkv": "fp16",
        "blocks.1.attn.out": "fp16",
    }
    assert "# narrow inside a wide site" in recipe_text(recipe, proposal, evidence=[])


def test_a_proposal_that_needs_it_scales_the_loss() -> None:
    lost = rounded(underflow=0.95, snr_db=2.0)
    tiny = [effect(e.site, e.op, part=e.part, gradient=lost, gradient_absmax=1e-8) for e in small_gpt().effects]
    recipe = planned_recipe(proposal_of(*tiny), find_recipe("half"), name="planned")
    assert recipe.loss_scale.kind == "dynamic"
    assert recipe.overrides == {}
    assert planned_recipe(proposal_of(), find_recipe("half"), name="planned").loss_scale.kind == "none"


def test_a_loss_scale_begins_where_it_skips_no_step() -> None:
    proposal = replace(proposal_of(), first_scale=64.0)
    recipe = planned_recipe(proposal, find_recipe("half"), name="planned", safe=True)
    assert (recipe.loss_scale.kind, recipe.loss_scale.initial) == ("dynamic", 64.0)


def test_the_safe_recipe_has_master_weights_and_a_loss_scale() -> None:
    recipe = planned_recipe(proposal_of(), find_recipe("half"), name="planned", safe=True)
    assert (recipe.master_weights, recipe.loss_scale.kind) == (True, "dynamic")
    assert can_be_safer(find_recipe("half"))
    assert not can_be_safer(recipe)


def test_a_format_with_the_range_of_fp32_needs_no_loss_scale() -> None:
    proposal = replace(proposal_of(), base_format="bf16")
    recipe = planned_recipe(proposal, find_recipe("bf16-stochastic"), name="planned", safe=True)
    assert (recipe.master_weights, recipe.update, recipe.loss_scale.kind) == (True, "nearest", "none")


@pytest.mark.parametrize("base", ["half", "O1", "O2", "O3", "bf16", "amp-fp16", "fp8", "mxfp4"])
def test_a_plan_can_start_from(base: str) -> None:
    recipe = find_recipe(base)
    check_base(recipe)
    formats = formats_of(recipe)
    effects = [effect(e.site, e.op, part=e.part, fmt=formats[0]) for e in small_gpt().effects]
    proposal = propose(small_gpt(*effects), formats=formats, target=Target(loss=0.005), only_ops=rounded_ops(recipe))
    assert planned_recipe(proposal, recipe, name=base) == recipe


@pytest.mark.parametrize("base", ["fp32", "fixed"])
def test_a_plan_cannot_start_from(base: str) -> None:
    with pytest.raises(PlanError, match=f"cannot start from recipe '{base}'"):
        check_base(find_recipe(base))


def test_a_plan_decides_itself_which_layers_nvfp4_keeps_wide() -> None:
    steady = effect("body", "linear", part="weight", fmt="nvfp4")
    lossy = effect("head", "linear", part="weight", fmt="nvfp4", loss_change=0.3)
    proposal = propose(measured(steady, lossy), formats=["nvfp4"], target=Target(loss=0.005), layers_only=True)
    recipe = planned_recipe(proposal, find_recipe("nvfp4"), name="planned")
    assert recipe.operands.wide_share == 0.0
    assert dict(recipe.overrides) == {"head": "fp32"}


def test_only_layers_are_planned_if_only_layers_are_rounded() -> None:
    attention = effect("attn", "matmul", fmt="nvfp4", loss_change=0.3)
    layer = effect("attn.out", "linear", part="weight", fmt="nvfp4")
    proposal = propose(measured(attention, layer), formats=["nvfp4"], target=Target(loss=0.005), layers_only=True)
    assert [each.site for each in proposal.sites] == ["attn.out"]
    assert not proposal.wide
