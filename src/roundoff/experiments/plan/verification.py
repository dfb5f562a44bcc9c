"""Verifies a planned recipe by short trainings with several seeds against fp32, and repairs it where it is worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from roundoff.errors import BisectError, PlanError
from roundoff.experiments.bisect.judgements import Budget, OutOfBudget
from roundoff.experiments.bisect.smallest import OnSearchProgress, SmallestSet, smallest_wide
from roundoff.experiments.plan.plan_session import PlanFolder, PlanOptions, PlanSession
from roundoff.experiments.plan.proposal_recipe import can_be_safer
from roundoff.experiments.plan.site_choices import WIDE, Proposal
from roundoff.experiments.trials.judges import LossJudge, final_loss, loss_judge, trial_seeds
from roundoff.experiments.trials.targets import own_seed
from roundoff.experiments.trials.trial import TrialResult, TrialSetting
from roundoff.precision.recipe.recipe import Recipe
from roundoff.precision.recipe.toml import to_toml
from roundoff.runs import JsonValue
from roundoff.sensitivity.effects import Sensitivity, most_suspicious

RunTrials = Callable[[Sequence[TrialSetting]], list[TrialResult]]
"""Trains with each setting, or returns its known result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The results of a recipe with several seeds, compared with fp32."""

    judge: LossJudge
    losses: tuple[float | None, ...]
    """At the end of each trial, by seed; None if there was none."""
    bad_seeds: tuple[int, ...]
    verdicts: tuple[str, ...]
    num_steps: int
    """The number of steps of the longest trial."""

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
            f"fp32 has {self.judge.reference.text}, at most {self.judge.limit:.4g} is good"
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

    run_trials: RunTrials
    folder: PlanFolder
    seeds: tuple[int, ...]
    num_steps: int | None
    budget: Budget = field(default_factory=Budget)
    _requested: set[tuple[str | None, int | None]] = field(default_factory=set)
    _judge: LossJudge | None = None
    _began: float = field(default_factory=time.monotonic)

    @classmethod
    def for_session(cls, session: PlanSession, options: PlanOptions) -> Self:
        """Return the verifier of the recipes of a plan."""
        own = own_seed(session.trials.target)
        return cls(
            run_trials=session.trials.run_all,
            folder=session.folder,
            seeds=tuple(own if seed is None else seed for seed in trial_seeds(options.seeds)),
            num_steps=options.num_steps,
            budget=Budget(max_runs=options.max_runs, deadline_seconds=options.max_seconds),
        )

    @property
    def num_trials(self) -> int:
        """How many different trials were requested, including those read from the folder."""
        return len(self._requested)

    def judge(self) -> LossJudge:
        """Return the judge that knows how much trainings in fp32 vary.

        Raises:
            PlanError: the training fails in fp32.
        """
        if self._judge is None:
            results = self._run([self._setting("fp32", seed) for seed in self.seeds])
            for result in results:
                if result.exit_code != 0 or not result.is_finite or final_loss(result) is None:
                    raise _fp32_error(result)
            self._judge = loss_judge(results)
        return self._judge

    def verify(self, recipe: Recipe) -> Verification:
        """Train with the recipe and every seed."""
        judge = self.judge()
        results = self._run([self._setting(self._file(recipe), seed) for seed in self.seeds])
        verdicts = [judge(result) for result in results]
        return Verification(
            judge=judge,
            losses=tuple(final_loss(result) for result in results),
            bad_seeds=tuple(seed for seed, verdict in zip(self.seeds, verdicts, strict=True) if verdict.is_bad),
            verdicts=tuple(verdict.text for verdict in verdicts),
            num_steps=max(len(result.losses) for result in results),
        )

    def is_good(self, recipe: Recipe, *, seed: int) -> bool:
        """Train with the recipe and one seed."""
        (result,) = self._run([self._setting(self._file(recipe), seed)])
        return not self.judge()(result).is_bad

    def _file(self, recipe: Recipe) -> str:
        return str(self.folder.write_trial_recipe(to_toml(recipe)).absolute())

    def _setting(self, recipe: str, seed: int) -> TrialSetting:
        return TrialSetting(recipe=recipe, seed=seed, steps=self.num_steps)

    def _run(self, settings: Sequence[TrialSetting]) -> list[TrialResult]:
        requested = self._requested | {(setting.recipe, setting.seed) for setting in settings}
        if len(requested) > len(self._requested):
            self.budget.check(num_runs=len(requested) - 1, began=self._began)
            self._requested = requested
        return self.run_trials(settings)


def _fp32_error(result: TrialResult) -> PlanError:
    if result.exit_code != 0:
        why = f"it ended with exit code {result.exit_code}"
    elif not result.is_finite:
        why = f"its loss was not finite at step {result.first_nonfinite_step}"
    else:
        why = "no loss was observed"
    log = "" if result.folder is None else f": {result.folder / 'log.txt'}"
    return PlanError.explain(
        "The training also fails in fp32.",
        why=f"{why}{log}",
        fix="find the cause first: watch the script with `roundoff run`.",
    )


_MAX_REPAIRS = 3

BuildRecipe = Callable[[Proposal, bool], Recipe]
"""Makes the recipe of a proposal; True adds a loss scale and master weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedProposal:
    """The final proposal, its recipe, and the repairs that led to it."""

    proposal: Proposal
    recipe: Recipe
    verification: Verification | None
    """None if the budget ended before the recipe was verified."""
    tried: tuple[str, ...]
    """The repairs that were tried, in order, a sentence each."""

    @property
    def is_good(self) -> bool:
        """Whether the recipe trains as well as fp32."""
        return self.verification is not None and self.verification.is_good


def verify_and_repair(
    proposal: Proposal,
    *,
    measured: Sensitivity,
    build: BuildRecipe,
    verifier: Verifier,
    on_progress: OnSearchProgress | None = None,
) -> VerifiedProposal:
    """Verify a proposal, and repair it as long as it does not train as well as fp32.

    First a loss scale and master weights are tried, which help where no single site is the cause. Then a bisection over
    the narrow sites, the most suspicious first, finds a smallest set that must be wide.
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
            reason = f"bisection: the training with seed {seed} is bad with it in {proposal.base_format}"
            proposal, verification = proposal.with_wide(found.sites, reason=reason), None
    except OutOfBudget as out:
        tried.append(f"{out.limit} ended the trials")
    except BisectError as error:
        tried.append(f"a bisection over the sites found nothing: {_why(error)}")
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
        """Return the smallest set that helps, and whether a loss scale and master weights are also needed."""
        sites = self._suspects()
        safe = self.safe
        if not safe and not self._is_good(frozenset(sites), safe=False):
            safe = True  # still bad with every site wide: sites alone are not the cause
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
