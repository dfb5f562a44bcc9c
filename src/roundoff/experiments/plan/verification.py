"""Trains shortly with a planned recipe and with fp32, under several seeds: does it train as fp32 does?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roundoff.errors import BisectError, PlanError
from roundoff.experiments.bisect.judgements import Budget, OutOfBudget
from roundoff.experiments.bisect.smallest import OnSearchProgress, SmallestSet, smallest_wide
from roundoff.experiments.plan.folder import PlanFolder
from roundoff.experiments.plan.proposal_recipe import can_be_safer
from roundoff.experiments.plan.site_formats import WIDE, Proposal
from roundoff.experiments.trials.judges import LossJudge, final_loss, loss_judge
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity, most_suspicious

RunTrials = Callable[[Sequence[TrialSetting]], list[TrialResult]]
"""Trains with each setting, or knows what came of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of a recipe under several seeds, beside fp32."""

    judge: LossJudge
    losses: tuple[float | None, ...]
    """At the end of each trial, by seed; None where there was none."""
    bad_seeds: tuple[int, ...]
    verdicts: tuple[str, ...]
    num_steps: int
    """How long the longest of the trials was."""

    @property
    def is_good(self) -> bool:
        """Whether every trial ended within the spread of fp32."""
        return not self.bad_seeds

    @property
    def text(self) -> str:
        """One line with all numbers."""
        ended = ", ".join(f"{loss:.4g}" if loss is not None else "none" for loss in self.losses)
        return (
            f"{len(self.losses)} trainings of {self.num_steps} steps ended with a loss of {ended}; "
            f"fp32 has {self.judge.reference.text}, up to {self.judge.limit:.4g} is good"
        )

    def to_object(self) -> dict[str, JsonValue]:
        """Return the numbers as JSON values."""
        reference = self.judge.reference
        return {
            "good": self.is_good,
            "losses": list(self.losses),
            "reference_mean": reference.mean,
            "reference_deviation": reference.deviation,
            "limit": self.judge.limit,
            "steps": self.num_steps,
        }


@dataclass(slots=True, kw_only=True)
class Verifier:
    """Judges recipes by short trainings, within a budget."""

    try_settings: RunTrials
    folder: PlanFolder
    seeds: tuple[int, ...]
    num_steps: int | None
    budget: Budget = field(default_factory=Budget)
    _asked: set[tuple[str | None, int | None]] = field(default_factory=set)
    _judge: LossJudge | None = None
    _began: float = field(default_factory=time.monotonic)

    @property
    def num_trials(self) -> int:
        """Different trials that were asked for; an earlier try of this plan may have made some of them."""
        return len(self._asked)

    def judge(self) -> LossJudge:
        """Return the judge that knows how far the trainings in fp32 are apart.

        Raises:
            PlanError: the training fails in fp32.
        """
        if self._judge is None:
            results = self._tried([self._setting("fp32", seed) for seed in self.seeds])
            for result in results:
                if result.exit_code != 0 or not result.is_finite or final_loss(result) is None:
                    raise _fp32_error(result)
            self._judge = loss_judge(results)
        return self._judge

    def verify(self, recipe: Recipe) -> Verification:
        """Train with the recipe under every seed."""
        judge = self.judge()
        results = self._tried([self._setting(self._file(recipe), seed) for seed in self.seeds])
        verdicts = [judge(result) for result in results]
        return Verification(
            judge=judge,
            losses=tuple(final_loss(result) for result in results),
            bad_seeds=tuple(seed for seed, verdict in zip(self.seeds, verdicts, strict=True) if verdict.is_bad),
            verdicts=tuple(verdict.text for verdict in verdicts),
            num_steps=max(len(result.losses) for result in results),
        )

    def is_good(self, recipe: Recipe, *, seed: int) -> bool:
        """Train with the recipe under one seed."""
        (result,) = self._tried([self._setting(self._file(recipe), seed)])
        return not self.judge()(result).is_bad

    def _file(self, recipe: Recipe) -> str:
        return str(self.folder.keep_recipe(to_toml(recipe)).absolute())

    def _setting(self, recipe: str, seed: int) -> TrialSetting:
        return TrialSetting(recipe=recipe, seed=seed, steps=self.num_steps)

    def _tried(self, settings: Sequence[TrialSetting]) -> list[TrialResult]:
        asked = self._asked | {(setting.recipe, setting.seed) for setting in settings}
        seconds = time.monotonic() - self._began
        if len(asked) > len(self._asked):
            if limit := self.budget.exceeded(num_runs=len(asked) - 1, seconds=seconds):
                raise OutOfBudget(limit)
            self._asked = asked
        return self.try_settings(settings)


def _fp32_error(result: TrialResult) -> PlanError:
    if result.exit_code != 0:
        why = f"it ended with exit code {result.exit_code}"
    elif not result.is_finite:
        why = f"its loss was not finite in step {result.first_nonfinite_step}"
    else:
        why = "no loss was seen in it"
    log = "" if result.folder is None else f": {result.folder / 'log.txt'}"
    return PlanError.explain(
        "The training fails in fp32, too.",
        why=f"{why}{log}",
        fix="find out why first: roundoff run SCRIPT",
    )


# == Where a planned recipe does not train as fp32 does: what it lacks, found by trying.

_MAX_REPAIRS = 3

BuildRecipe = Callable[[Proposal, bool], Recipe]
"""Makes the recipe of a proposal; True adds what no site can: a loss scale and master weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedProposal:
    """The proposal in the end, its recipe, and how it got there."""

    proposal: Proposal
    recipe: Recipe
    verification: Verification | None
    """None if the budget ended before the recipe was tried."""
    tried: tuple[str, ...]
    """What was tried besides, in order, a sentence each."""

    @property
    def is_good(self) -> bool:
        """Whether the recipe trains as fp32 does."""
        return self.verification is not None and self.verification.is_good


def verify_and_repair(
    proposal: Proposal,
    *,
    measured: Sensitivity,
    build: BuildRecipe,
    verifier: Verifier,
    on_progress: OnSearchProgress | None = None,
) -> VerifiedProposal:
    """Try a proposal, and repair it as long as it does not train as fp32 does.

    First a loss scale and master weights are tried, which cure what no site is to blame for. Then a bisection over the
    narrow sites, the most suspicious first, finds a smallest set that has to be wide.
    """
    tried: list[str] = []
    safe = False
    verification: Verification | None = None
    try:
        for number in range(_MAX_REPAIRS + 1):
            verification = verifier.verify(build(proposal, safe))
            if verification.is_good or number == _MAX_REPAIRS:
                break
            tried.append(f"not good enough: {verification.text}")
            seed = verification.bad_seeds[0]
            if not safe and can_be_safer(build(proposal, False)) and verifier.is_good(build(proposal, True), seed=seed):
                tried.append("good with a loss scale and master weights")
                safe, verification = True, None
                continue
            repair = _Repair(proposal=proposal, measured=measured, build=build, verifier=verifier, seed=seed, safe=safe)
            found, safe = repair.search(number + 1, on_progress=on_progress)
            tried.append(_describe_repair(found))
            reason = f"bisection: seed {seed} trains badly with it in {proposal.base_format}"
            proposal, verification = proposal.with_wide(found.sites, reason=reason), None
    except OutOfBudget as out:
        tried.append(f"{out.limit} ended the trials")
    except BisectError as error:
        tried.append(f"a bisection over the sites came to nothing: {_why(error)}")
    return VerifiedProposal(
        proposal=proposal, recipe=build(proposal, safe), verification=verification, tried=tuple(tried)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repair:
    """One bisection over the narrow sites."""

    proposal: Proposal
    measured: Sensitivity
    build: BuildRecipe
    verifier: Verifier
    seed: int
    safe: bool

    def search(self, number: int, *, on_progress: OnSearchProgress | None) -> tuple[SmallestSet, bool]:
        """Return the smallest set that saves the training, and whether it took a loss scale and master weights, too."""
        sites = self._suspects()
        safe = self.safe
        if not safe and not self._is_good(frozenset(sites), safe=False):
            safe = True  # with every site wide it is still bad: what is left is not a matter of sites alone
        found = smallest_wide(
            sites,
            lambda wide: self._is_good(wide, safe=safe),
            remember_in=self.verifier.folder.judgements(number),
            on_progress=on_progress,
        )
        return found, safe

    def _is_good(self, wide: frozenset[str], *, safe: bool) -> bool:
        recipe = self.build(self.proposal.with_wide(wide, reason="tried"), safe)
        return self.verifier.is_good(recipe, seed=self.seed)

    def _suspects(self) -> list[str]:
        narrow = [each.site for each in self.proposal.sites if each.fmt != WIDE]
        fmt = self.proposal.base_format
        return sorted(narrow, key=lambda site: -most_suspicious(self.measured.of(fmt, site=site)))


def _why(error: BisectError) -> str:
    return next((line.partition("why: ")[2] for line in str(error).splitlines() if "why: " in line), str(error))


def _describe_repair(found: SmallestSet) -> str:
    proof = "bad if one of them is narrow" if found.is_minimal else "not proven smallest"
    return f"bisection of {found.num_runs} trials: {', '.join(found.sites)} must be wide ({proof})"
