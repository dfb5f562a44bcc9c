"""Formats for the sites of a step that was made by hand."""

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.site_choices import Proposal
from roundoff.sensitivity.effects import Sensitivity
from tests.experiments.measured_steps import effect, measured, rounded, small_gpt

LOSS = Target(loss=0.005)
LOST = rounded(underflow=0.95, subnormal=0.05, snr_db=2.0)


def planned(sensitivity: Sensitivity, *formats: str, target: Target = LOSS, modules_only: bool = False) -> Proposal:
    return propose(sensitivity, formats=formats or ("fp16",), target=target, modules_only=modules_only)


def test_a_healthy_step_is_narrow_everywhere() -> None:
    proposal = planned(small_gpt())
    assert proposal.wide == ()
    assert {each.fmt for each in proposal.sites} == {"fp16"}
    assert proposal.narrow_parameters == 1.0
    assert proposal.scaling is None
    assert proposal.mean_bits == 16.0


def test_an_overflow_in_one_attention_keeps_that_site_wide_and_its_parameters_narrow() -> None:
    overflowing = effect("blocks.1.attn", "matmul", absmax=3e6, value=rounded(overflow=0.2))
    proposal = planned(small_gpt(overflowing))
    (attention,) = proposal.wide
    assert (attention.site, attention.fmt, attention.ops) == ("blocks.1.attn", "fp32", {})
    assert attention.reasons == ("matmul overflow: its result reaches 3e+06, the largest fp16 number is 65504",)
    assert proposal.narrow_parameters == 1.0


def fused_attention() -> Sensitivity:
    """Return a step with an attention that holds its parameters itself, and overflows elsewhere."""
    overflowing = effect("attn", "bmm", absmax=3e6, value=rounded(overflow=0.2))
    return measured(effect("attn", "linear", part="weight"), overflowing, parameters={"attn": 100})


def test_an_op_of_a_site_with_parameters_is_wide_without_them() -> None:
    (attention,) = planned(fused_attention()).wide
    assert (attention.site, attention.fmt, attention.ops) == ("attn", "fp16", {"bmm": "fp32"})


def test_modules_only_widens_the_site_instead_of_the_op() -> None:
    (attention,) = planned(fused_attention(), modules_only=True).wide
    assert (attention.site, attention.fmt, attention.ops) == ("attn", "fp32", {})


def test_of_the_models_own_code_only_ops_can_be_wide() -> None:
    lossy = effect("<model>", "mul", loss_change=0.5)
    (model,) = planned(measured(effect("<model>", "add"), lossy)).wide
    assert (model.site, model.fmt, model.ops) == ("<model>", "fp16", {"mul": "fp32"})


def test_a_layer_whose_weights_are_the_problem_is_wide_as_a_whole() -> None:
    lossy = effect("head", "linear", part="weight", loss_change=0.3)
    proposal = planned(small_gpt(lossy))
    (head,) = proposal.wide
    assert (head.site, head.fmt, head.ops) == ("head", "fp32", {})
    assert head.reasons == (
        "linear would change the loss by 0.3 in fp16; the target is the loss within 0.5 % of fp32 in one step",
    )
    assert proposal.narrow_parameters == pytest.approx(1 - 500 / 3048)


def test_a_site_without_parameters_is_wide_as_a_whole() -> None:
    ops = [effect("scores", "mul"), effect("scores", "exp", value=rounded(overflow=1.0), absmax=1e9)]
    (scores,) = planned(measured(effect("fc", "linear"), *ops)).wide
    assert (scores.site, scores.fmt, scores.ops) == ("scores", "fp32", {})


def test_gradients_that_vanish_at_one_site_keep_that_site_wide() -> None:
    vanishing = effect("blocks.0.attn", "softmax", gradient=LOST, gradient_absmax=1e-9)
    proposal = planned(small_gpt(vanishing))
    assert proposal.scaling is None
    assert [(each.site, each.fmt) for each in proposal.wide] == [("blocks.0.attn", "fp32")]


def test_gradients_that_vanish_everywhere_call_for_a_loss_scale() -> None:
    healthy = small_gpt()
    tiny = [effect(e.site, e.op, part=e.part, gradient=LOST, gradient_absmax=1e-8) for e in healthy.effects]
    proposal = planned(measured(*tiny, parameters=dict(healthy.num_parameters)))
    assert proposal.wide == ()
    assert proposal.scaling == "gradients vanish in fp16 at 14 of 14 ops; the largest of all is 1e-08"


@pytest.mark.parametrize(("largest", "scale"), [(1e-8, 2.0**16), (100.0, 128.0), (1e6, 1.0), (None, 2.0**16)])
def test_a_loss_scale_begins_where_the_largest_gradient_does_not_overflow(largest: float | None, scale: float) -> None:
    healthy = small_gpt()
    effects = [effect(e.site, e.op, part=e.part, gradient_absmax=largest) for e in healthy.effects]
    assert planned(measured(*effects, parameters=dict(healthy.num_parameters))).first_scale == scale


def test_a_site_that_no_loss_scale_can_save_stays_wide() -> None:
    healthy = small_gpt()
    tiny = [effect(e.site, e.op, part=e.part, gradient=LOST, gradient_absmax=1e-6) for e in healthy.effects]
    tiny[-1] = effect("head", "linear", gradient=LOST, gradient_absmax=1e-14)
    proposal = planned(measured(*tiny, parameters=dict(healthy.num_parameters)))
    assert proposal.scaling is not None
    assert [each.site for each in proposal.wide] == ["head"]


def test_where_the_loss_is_scaled_anyway_small_gradients_are_nothing_to_speak_of() -> None:
    vanishing = effect("blocks.0.attn", "softmax", gradient=LOST, gradient_absmax=1e-7)
    proposal = propose(small_gpt(vanishing), formats=["fp16"], target=LOSS, is_scaled=True)
    assert (proposal.wide, proposal.scaling) == ((), None)


def test_each_site_takes_the_narrowest_of_several_formats() -> None:
    effects = []
    for fmt, errors in (("e4m3", (1e-6, 0.1)), ("bf16", (1e-7, 1e-6))):
        effects += [
            effect(site, "linear", fmt=fmt, part="weight", loss_change=error)
            for site, error in zip(("a", "b"), errors, strict=True)
        ]
    proposal = planned(measured(*effects, parameters={"a": 900, "b": 100}), "bf16", "e4m3")
    assert {each.site: each.fmt for each in proposal.sites} == {"a": "e4m3", "b": "bf16"}
    assert proposal.base_format == "e4m3"


def test_a_budget_widens_what_costs_the_loss_most() -> None:
    sizes = {"a": 100, "b": 100}
    effects = [effect(site, "linear", part="weight", loss_change=error) for site, error in (("a", 0.1), ("b", 0.2))]
    proposal = planned(measured(*effects, parameters=sizes), target=Target(bits=24.0))
    assert {each.site: each.fmt for each in proposal.sites} == {"a": "fp16", "b": "fp32"}
    assert proposal.mean_bits == 24.0


def test_what_the_loop_and_further_models_compute_is_not_planned() -> None:
    step = measured(
        effect("fc", "linear"), effect("<loop>", "mse_loss", absmax=1e9), effect("Critic:0", "linear"), parameters={}
    )
    assert [each.site for each in planned(step).sites] == ["fc"]


def test_a_format_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(PlanError, match="was not measured for e5m2"):
        planned(small_gpt(), "e5m2")


def test_a_step_in_which_nothing_is_rounded_is_an_error() -> None:
    with pytest.raises(PlanError, match="rounds nothing"):
        planned(measured(effect("<loop>", "mse_loss")))


def test_a_repair_makes_sites_wide_and_says_why() -> None:
    repaired = planned(small_gpt()).with_wide(["blocks.0.attn.qkv"], reason="bisection: bad without it")
    (site,) = repaired.wide
    assert (site.site, site.fmt, site.reasons) == ("blocks.0.attn.qkv", "fp32", ("bisection: bad without it",))
    assert repaired.mean_bits == pytest.approx(16 + 16 * 200 / 1900)
    assert repaired.loss_change < planned(small_gpt()).loss_change
