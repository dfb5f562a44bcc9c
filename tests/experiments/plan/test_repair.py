"""What a proposal lacks is found by trying: first what no site can give, then the sites."""

from collections.abc import Callable, Sequence
from pathlib import Path

from roundoff.experiments.bisect.judgements import Budget
from roundoff.experiments.plan.plan_session import PlanFolder, Target
from roundoff.experiments.plan.proposal import propose
from roundoff.experiments.plan.proposal_recipe import planned_recipe
from roundoff.experiments.plan.site_choices import Proposal
from roundoff.experiments.plan.verification import VerifiedProposal, Verifier, verify_and_repair
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision import Recipe, find_recipe
from tests.experiments.measured_steps import effect, small_gpt

IsGood = Callable[[Recipe], bool]


def is_wide(recipe: Recipe, site: str) -> bool:
    """Whether the last override that covers a site makes it wide."""
    covering = [fmt for key, fmt in recipe.overrides.items() if site == key or site.startswith(f"{key}.")]
    return covering[-1:] == ["fp32"]


def repaired(folder: Path, is_good: IsGood, *, base: str = "half", budget: Budget | None = None) -> VerifiedProposal:
    """Repair a plan of the small GPT whose trainings end well if `is_good` says so of their recipe."""
    measured = small_gpt(effect("blocks.0", "add", loss_change=3e-6))
    proposal = propose(measured, formats=["fp16"], target=Target(loss=0.005))

    def build(of: Proposal, safe: bool) -> Recipe:
        return planned_recipe(of, find_recipe(base), name="planned", safe=safe)

    def try_settings(settings: Sequence[TrialSetting]) -> list[TrialResult]:
        recipes = [find_recipe(setting.recipe or "") for setting in settings]
        return [TrialResult(losses=(1.0 if each.name == "fp32" or is_good(each) else 9.0,)) for each in recipes]

    verifier = Verifier(
        run_trials=try_settings,
        folder=PlanFolder(path=folder),
        seeds=(0, 1),
        num_steps=10,
        budget=budget or Budget(),
    )
    return verify_and_repair(proposal, measured=measured, build=build, verifier=verifier)


def test_a_good_proposal_is_left_as_it_is(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: True)
    assert answer.is_good
    assert answer.tried == ()
    assert answer.recipe.overrides == {}


def test_a_site_that_must_be_wide_is_found(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: is_wide(recipe, "blocks.1.norm"))
    assert answer.is_good
    assert answer.recipe.overrides == {"blocks.1.norm": "fp32"}
    assert answer.recipe.loss_scale.kind == "none"
    assert answer.tried[0].startswith("not good enough: 2 trainings of 1 steps ended with a loss of 9, 9")
    assert "blocks.1.norm must be wide (bad if one of them is narrow)" in answer.tried[1]
    (norm,) = [each for each in answer.proposal.sites if each.site == "blocks.1.norm"]
    assert norm.reasons == ("bisection: the training with seed 0 is bad with it in fp16",)


def test_updates_that_vanish_are_cured_by_master_weights_and_not_by_sites(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: recipe.master_weights)
    assert answer.is_good
    assert answer.recipe.overrides == {}
    assert (answer.recipe.master_weights, answer.recipe.loss_scale.kind) == (True, "dynamic")
    assert answer.tried[1] == "good with a loss scale and master weights"


def test_a_site_and_master_weights_can_be_needed_together(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: recipe.master_weights and recipe.overrides.get("head") == "fp32")
    assert answer.is_good
    assert answer.recipe.master_weights
    assert answer.recipe.overrides == {"head": "fp32"}


def test_where_no_site_helps_that_is_said(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: False, base="O2")
    assert not answer.is_good
    assert answer.tried[-1] == (
        "a bisection over the sites found nothing: is_good is false with all of them wide, so their precision is "
        "not the cause."
    )


def test_a_budget_ends_the_repair_and_says_so(tmp_path: Path) -> None:
    answer = repaired(tmp_path, lambda recipe: recipe.overrides.get("embed") == "fp32", budget=Budget(max_runs=7))
    assert not answer.is_good
    assert answer.verification is None
    assert answer.tried[-1] == "max_runs ended the trials"
