"""Where a planned recipe does not train as fp32 does: what it lacks, found by trying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from roundoff.errors import BisectError
from roundoff.experiments.bisection import OnProgress, Smallest
from roundoff.experiments.judgements import OutOfBudget
from roundoff.experiments.plan_recipe import can_be_safer
from roundoff.experiments.plan_sites import Proposal
from roundoff.experiments.plan_trials import Verification, Verifier
from roundoff.experiments.plan_units import WIDE
from roundoff.experiments.smallest import smallest_wide
from roundoff.precision.recipe import Recipe
from roundoff.sensitivity.sensitivity import Sensitivity, most_suspicious

_MOST_REPAIRS = 3

BuildRecipe = Callable[[Proposal, bool], Recipe]
"""Makes the recipe of a proposal; True adds what no site can: a loss scale and master weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
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


def verified(
    proposal: Proposal,
    *,
    measured: Sensitivity,
    build: BuildRecipe,
    verifier: Verifier,
    on_progress: OnProgress | None = None,
) -> Verified:
    """Try a proposal, and repair it as long as it does not train as fp32 does.

    First a loss scale and master weights are tried, which cure what no site is to blame for. Then a bisection over the
    narrow sites, the most suspicious first, finds a smallest set that has to be wide.
    """
    tried: list[str] = []
    safe = False
    verification: Verification | None = None
    try:
        for number in range(_MOST_REPAIRS + 1):
            verification = verifier.verify(build(proposal, safe))
            if verification.is_good or number == _MOST_REPAIRS:
                break
            tried.append(f"not good enough: {verification.text}")
            seed = verification.bad_seeds[0]
            if not safe and can_be_safer(build(proposal, False)) and verifier.is_good(build(proposal, True), seed=seed):
                tried.append("good with a loss scale and master weights")
                safe, verification = True, None
                continue
            repair = _Repair(proposal=proposal, measured=measured, build=build, verifier=verifier, seed=seed, safe=safe)
            found, safe = repair.search(number + 1, on_progress=on_progress)
            tried.append(_what_was_found(found))
            reason = f"bisection: seed {seed} trains badly with it in {proposal.base_format}"
            proposal, verification = proposal.with_wide(found.sites, reason=reason), None
    except OutOfBudget as out:
        tried.append(f"{out.limit} ended the trials")
    except BisectError as error:
        tried.append(f"a bisection over the sites came to nothing: {_why(error)}")
    return Verified(proposal=proposal, recipe=build(proposal, safe), verification=verification, tried=tuple(tried))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repair:
    """One bisection over the narrow sites."""

    proposal: Proposal
    measured: Sensitivity
    build: BuildRecipe
    verifier: Verifier
    seed: int
    safe: bool

    def search(self, number: int, *, on_progress: OnProgress | None) -> tuple[Smallest, bool]:
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


def _what_was_found(found: Smallest) -> str:
    proof = "bad if one of them is narrow" if found.is_minimal else "not proven smallest"
    return f"bisection of {found.num_runs} trials: {', '.join(found.sites)} must be wide ({proof})"
