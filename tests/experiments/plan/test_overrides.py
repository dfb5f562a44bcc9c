"""Overrides that give every site of a real model the format of its plan."""

from collections import OrderedDict

from torch import nn

from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import overrides_of
from roundoff.experiments.plan.site_choices import Proposal, SitePlan
from roundoff.precision.recipe.site_formats import override_sites
from tests.experiments.measured_steps import small_gpt


def proposal_of(*sites: SitePlan) -> Proposal:
    return Proposal(base_format="fp16", sites=sites, loss=1.0)


def test_a_plan_in_one_format_overrides_nothing() -> None:
    assert overrides_of(propose(small_gpt(), formats=["fp16"], target=Target(loss=0.005))) == {}


def test_an_op_is_named_after_its_site() -> None:
    plan = proposal_of(SitePlan(site="blocks.1.attn", fmt="fp16", ops={"matmul": "fp32"}, all_ops=("matmul",)))
    assert overrides_of(plan) == {"blocks.1.attn:matmul": "fp32"}


def test_what_is_narrow_inside_a_wide_site_is_named_again() -> None:
    model = nn.Sequential(OrderedDict(attn=nn.Sequential(OrderedDict(qkv=nn.Linear(4, 12), norm=nn.LayerNorm(12)))))
    plan = proposal_of(
        SitePlan(site="attn.qkv", fmt="fp16", all_ops=("linear",)),
        SitePlan(site="attn.norm", fmt="fp16", all_ops=("layer_norm",)),
        SitePlan(site="attn", fmt="fp32", all_ops=("matmul",)),
    )
    overrides = overrides_of(plan)
    assert overrides == {"attn": "fp32", "attn.qkv": "fp16"}
    formats = override_sites(model, overrides)
    assert formats[model.attn] == "fp32"
    assert formats[model.attn.qkv] == "fp16"


def test_a_wide_norm_is_named() -> None:
    assert overrides_of(proposal_of(SitePlan(site="norm", fmt="fp32", all_ops=("layer_norm",)))) == {"norm": "fp32"}


def test_the_models_own_code_is_named_op_by_op() -> None:
    plan = proposal_of(SitePlan(site="<model>", fmt="fp32", all_ops=("add", "mul")))
    assert overrides_of(plan) == {"<model>:add": "fp32", "<model>:mul": "fp32"}


def test_characters_that_mean_something_in_a_pattern_are_taken_as_they_are() -> None:
    model = nn.ModuleDict({"a*": nn.Linear(2, 2), "ab": nn.Linear(2, 2)})
    overrides = overrides_of(proposal_of(SitePlan(site="a*", fmt="fp32", all_ops=("linear",))))
    assert set(override_sites(model, overrides)) == {model["a*"]}
