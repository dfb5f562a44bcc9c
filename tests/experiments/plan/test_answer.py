"""The words of a plan."""

from dataclasses import replace
from pathlib import Path

from roundoff.experiments.plan.plan_answer import Plan, plan_text, verdict
from roundoff.experiments.plan.plan_session import PlanOptions, Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import planned_recipe
from roundoff.experiments.plan.verification import Verification, VerifiedProposal
from roundoff.experiments.trials.judges import LossJudge, Spread
from roundoff.precision import find_recipe
from roundoff.sensitivity.effects import LossEffect
from tests.experiments.measured_steps import effect, measured, rounded, small_gpt

REFERENCE = LossJudge(reference=Spread.of([0.99, 1.0, 1.01]))


def plan_of(*changed: LossEffect, subject: str = "train.py", verify: bool = True) -> Plan:
    """Return a plan of the small GPT that is not verified."""
    measured = small_gpt(*changed)
    proposal = propose(measured, formats=["fp16"], target=Target(loss=0.005))
    return Plan(
        subject=subject,
        options=PlanOptions(verify=verify),
        measured=measured,
        measured_format="fp16",
        proposal=proposal,
        recipe=planned_recipe(proposal, find_recipe("half"), name="planned"),
        verified=None,
        not_tried="as requested",
        num_trials=0,
        folder=Path("runs/plan-1"),
        recipe_file=Path("planned.toml"),
    )


def tried(plan: Plan, *losses: float) -> Plan:
    """Return the plan with trials that ended with these losses, and references around 1."""
    bad = tuple(seed for seed, loss in enumerate(losses) if loss > REFERENCE.limit)
    verification = Verification(judge=REFERENCE, losses=losses, bad_seeds=bad, verdicts=(), num_steps=100)
    answer = VerifiedProposal(
        proposal=plan.proposal, recipe=plan.recipe, verification=verification, tried=("first this",)
    )
    return replace(plan, verified=answer, not_tried=None)


OVERFLOW = effect("blocks.1.attn", "matmul", absmax=3e6, value=rounded(overflow=0.2))


def test_a_plan_that_trains_says_so_first() -> None:
    assert verdict(tried(plan_of(), 1.0, 1.01, 1.0)) == (
        "fp16 everywhere: 100 % of the parameters are narrow, and it trains as well as fp32."
    )


def test_the_whole_text_fits_on_a_screen() -> None:
    plan = tried(plan_of(OVERFLOW), 1.0, 1.01, 1.0)
    text = plan_text(plan).partition("\n\nwhere")[0]
    assert text == (
        "fp16 everywhere except blocks.1.attn's own code: 100 % of the parameters are narrow, and it trains\n"
        "  as well as fp32.\n"
        "  blocks.1.attn fp32  matmul overflow: its result reaches 3e+06, the largest fp16 number is 65504\n"
        "\n"
        "  measured  step 2 in fp32, loss 2; the target is the loss within 0.5 % of fp32 in one step\n"
        "  expected  the loss changes by 4.1e-06 (0.00021 %) in one step\n"
        "  bits      17.7 per weight or result on average\n"
        "  tried     first this\n"
        "  verified  3 trainings of 100 steps ended with a loss of 1, 1.01, 1;\n"
        f"            fp32 has 1 +- 0.01 of 3 runs, at most {REFERENCE.limit:.4g} is good\n"
        "\n"
        "  recipe    planned.toml\n"
        "  page      runs/plan-1/precision.html\n"
        '  use       model, optimizer = roundoff.apply_recipe(model, optimizer, "planned.toml")'
    )


def test_reasons_and_trials_that_are_long_go_on_in_their_column() -> None:
    long = effect("blocks.1.attn", "matmul", absmax=3e6, value=rounded(overflow=0.2))
    plan = plan_of(long)
    wide = replace(plan.proposal.wide[0], reasons=("underflow: " + " ".join(["gradients"] * 12), "and more"))
    sites = tuple(wide if each.site == wide.site else each for each in plan.proposal.sites)
    plan = tried(replace(plan, proposal=replace(plan.proposal, sites=sites)), 1.0, 1.0, 1.0)
    assert plan.verified is not None
    plan = replace(plan, verified=replace(plan.verified, tried=(" ".join(["tried"] * 30),)))
    lines = plan_text(plan).splitlines()
    assert max(map(len, lines)) <= 100
    assert "                      and more" in lines
    assert [line for line in lines if "tried tried" in line][1].startswith("            tried")


def test_where_the_precision_goes_comes_last() -> None:
    where = plan_text(plan_of(OVERFLOW)).partition("\n\nwhere precision is lost\n")[2].splitlines()
    assert where[0].startswith("In fp16 blocks.1.attn overflows: 20 % of a tensor of matmul")
    assert next(line for line in where if line.startswith("site")).split()[:3] == ["site", "share", "loss"]
    assert sum(line.startswith(("blocks", "embed", "head")) for line in where) == 6


def test_a_plan_that_does_not_train_names_what_to_do_next() -> None:
    plan = tried(plan_of(subject="roundoff train --width 8"), 1.0, 3.0, 1.0)
    assert verdict(plan).endswith("but it does not train as well as fp32.")
    assert not plan.is_good
    lines = plan_text(plan).splitlines()
    assert "  use       roundoff train --recipe planned.toml ..." in lines
    assert "  next      roundoff bisect --bad planned.toml train --width 8" in lines


def test_what_was_not_tried_says_so() -> None:
    plan = plan_of(verify=False)
    assert verdict(plan).endswith("are narrow, not verified.")
    assert plan.is_good
    assert not plan_of(verify=True).is_good
    assert "not tried as requested" in plan_text(plan)


def test_of_many_sites_some_are_named_and_the_rest_is_counted() -> None:
    lossy = [replace(each, loss_change=0.5) for each in small_gpt().effects]
    assert verdict(plan_of(*lossy[1:])).startswith(
        "fp16 everywhere except blocks.0.norm, blocks.0.attn.qkv, blocks.0.attn, blocks.0.attn.out and 7 more:"
    )
    assert plan_text(plan_of(*lossy)).splitlines()[1].startswith("  embed fp32 ")


def test_where_nothing_can_be_narrow_that_is_the_verdict() -> None:
    lossy = [replace(each, loss_change=0.5) for each in small_gpt().effects]
    assert verdict(plan_of(*lossy)).startswith("no site can take fp16: 0 % of the parameters are narrow")


def test_a_plan_of_layers_counts_them_next_to_the_share_of_its_base() -> None:
    layers = [effect(f"fc{n}", "linear", part="weight", fmt="nvfp4", loss_change=0.1 * (n == 3)) for n in range(4)]
    step = measured(*layers, parameters={f"fc{n}": 100 for n in range(4)} | {"embed": 900})
    proposal = propose(step, formats=["nvfp4"], target=Target(loss=0.005), layers_only=True)
    recipe = planned_recipe(proposal, find_recipe("nvfp4"), name="planned")
    options = PlanOptions(base="nvfp4")
    plan = replace(plan_of(), options=options, proposal=proposal, recipe=recipe, measured_format="nvfp4", measured=step)
    assert verdict(plan) == "nvfp4 everywhere except fc3: 75 % of the parameters of layers are narrow, not verified."
    assert "  layers    1 of 4 are wide, 25 %; nvfp4 without a plan: 16 %\n" in plan_text(plan)
