"""Trains shortly with a planned recipe and with fp32, under several seeds: does it train as fp32 does?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roundoff.errors import PlanError
from roundoff.experiments.judgements import Budget, OutOfBudget
from roundoff.experiments.judges import LossJudge, final_loss, loss_judge
from roundoff.experiments.plan_folder import PlanFolder
from roundoff.experiments.trial import Setting, TrialResult
from roundoff.precision.recipe import Recipe
from roundoff.precision.recipe_toml import to_toml
from roundoff.runs import JsonValue

TrySettings = Callable[[Sequence[Setting]], list[TrialResult]]
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

    try_settings: TrySettings
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
                    raise _fails_in_fp32(result)
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

    def _setting(self, recipe: str, seed: int) -> Setting:
        return Setting(recipe=recipe, seed=seed, steps=self.num_steps)

    def _tried(self, settings: Sequence[Setting]) -> list[TrialResult]:
        asked = self._asked | {(setting.recipe, setting.seed) for setting in settings}
        seconds = time.monotonic() - self._began
        if len(asked) > len(self._asked):
            if limit := self.budget.exceeded(num_runs=len(asked) - 1, seconds=seconds):
                raise OutOfBudget(limit)
            self._asked = asked
        return self.try_settings(settings)


def _fails_in_fp32(result: TrialResult) -> PlanError:
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
