"""Judges decide whether a trial is good or bad, and say by which numbers."""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from roundoff.errors import BisectError
from roundoff.experiments.trials.trial import TrialResult
from roundoff.words import plural

JUDGES = ("auto", "nonfinite", "loss", "accuracy", "rule:CODE", "exit")

_SMOOTHED_SHARE = 0.2
"""The final loss of a training is the mean over this share of its steps, the last ones."""
_MAX_MARGIN = 0.5
"""Relative to the reference: if good runs are further apart than this, a run among them may still be bad."""
_MIN_MARGIN = 0.01
"""Relative to the reference: runs closer than this count as equal, however little the references vary."""
_QUANTILES = {2: 6.314, 3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015, 7: 1.943, 8: 1.895, 9: 1.860, 10: 1.833}
"""Student's t by number of references: one in twenty runs with another seed exceeds it by chance. Trials use the seed
of a reference, so fewer do; a wider margin would accept trainings that learn little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a judge says about one trial."""

    is_bad: bool
    text: str
    """With its number: `loss 2.31, at most 1.34 is good`."""
    number: float | None = None


class Judge(Protocol):
    """Decides whether a trial is good or bad."""

    @property
    def name(self) -> str:
        """The name of the judge, as `--judge` takes it."""

    @property
    def text(self) -> str:
        """What counts as bad, with numbers, for the user."""

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteJudge:
    """A trial is bad if a loss, or the evaluation, is NaN or infinite."""

    name: str = "nonfinite"
    text: str = "a loss that is not finite is bad"

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""
        if ended := _ended_early(result):
            return ended
        step = result.first_nonfinite_step
        if step is not None:
            return Verdict(is_bad=True, text=f"loss {result.losses[step]} at step {step}", number=result.losses[step])
        if not result.is_finite:
            return Verdict(is_bad=True, text=f"eval loss {result.eval_loss}", number=result.eval_loss)
        loss = final_loss(result)
        return Verdict(is_bad=False, text="finite" if loss is None else f"finite, loss {loss:.4g}", number=loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The results of the reference with several seeds."""

    mean: float
    deviation: float
    """The sample standard deviation; 0 if there was one run, or if all were equal."""
    num_runs: int

    @property
    def margin(self) -> float:
        """How far a good run may be from the mean: one in twenty is further by chance; at least 1 % of the mean."""
        quantile = _QUANTILES.get(self.num_runs, 1.7)
        by_chance = quantile * self.deviation * math.sqrt(1 + 1 / self.num_runs)
        return max(by_chance if self.num_runs > 1 else 0.0, _MIN_MARGIN * abs(self.mean))

    @property
    def is_too_noisy(self) -> bool:
        """Whether good runs are so far apart that a bad one may be among them."""
        return self.margin > _MAX_MARGIN * abs(self.mean)

    @property
    def text(self) -> str:
        """Mean, deviation and number of runs."""
        runs = plural(self.num_runs, "run")
        return f"{self.mean:.4g} +- {self.deviation:.2g} of {runs}"

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Return mean and deviation of at least one number."""
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
        return cls(mean=statistics.fmean(numbers), deviation=deviation, num_runs=len(numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossJudge:
    """A trial is bad if its loss at the end is higher than the reference's own noise allows, or not finite."""

    reference: Spread
    name: str = "loss"
    is_two_sided: bool = False
    """Whether a loss that is as much lower is bad too: a wrong op may also let a training learn faster."""

    @property
    def limit(self) -> float:
        """The highest loss that is good."""
        return self.reference.mean + self.reference.margin

    @property
    def lowest(self) -> float:
        """The lowest loss that is good."""
        return self.reference.mean - self.reference.margin if self.is_two_sided else -math.inf

    @property
    def text(self) -> str:
        """What counts as bad, with numbers."""
        bad = f"outside {self.lowest:.4g} to {self.limit:.4g}" if self.is_two_sided else f"above {self.limit:.4g}"
        return f"a loss {bad} is bad; the reference has {self.reference.text}"

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""
        if ended := _ended_early(result):
            return ended
        loss = final_loss(result)
        if loss is None:
            raise _judge_error("loss", "no loss was observed")
        is_bad = not self.lowest <= loss <= self.limit
        good = (
            f"{self.lowest:.4g} to {self.limit:.4g} is good"
            if self.is_two_sided
            else f"at most {self.limit:.4g} is good"
        )
        return Verdict(is_bad=is_bad, text=f"loss {loss:.4g}, {good}", number=loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyJudge:
    """A trial is bad if its accuracy is lower than the reference's own noise allows."""

    reference: Spread
    name: str = "accuracy"

    @property
    def limit(self) -> float:
        """The lowest accuracy that is good."""
        return self.reference.mean - self.reference.margin

    @property
    def text(self) -> str:
        """What counts as bad, with numbers."""
        return f"an accuracy below {self.limit:.4g} is bad; the reference has {self.reference.text}"

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""
        if ended := _ended_early(result):
            return ended
        if result.accuracy is None:
            raise _judge_error("accuracy", "it reports none; roundoff train does")
        is_bad = not result.accuracy >= self.limit
        text = f"accuracy {result.accuracy:.4g}, at least {self.limit:.4g} is good"
        return Verdict(is_bad=is_bad, text=text, number=result.accuracy)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleJudge:
    """A trial is bad if a rule of the diagnosis finds something in it."""

    code: str

    @property
    def name(self) -> str:
        """The name of the judge, as `--judge` takes it."""
        return f"rule:{self.code}"

    @property
    def text(self) -> str:
        """What counts as bad."""
        return f"a finding of the rule {self.code} is bad"

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""
        found = ", ".join(result.rules) or "nothing"
        return Verdict(is_bad=self.code in result.rules, text=f"found {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitJudge:
    """A trial is bad if its exit status is not 0."""

    name: str = "exit"
    text: str = "an exit status other than 0 is bad"

    def __call__(self, result: TrialResult) -> Verdict:
        """Judge one trial."""
        return Verdict(is_bad=result.exit_code != 0, text=f"exit {result.exit_code}", number=result.exit_code)


def final_loss(result: TrialResult) -> float | None:
    """Return the mean loss of the last fifth of the steps, or the evaluation loss if no step was observed."""
    if not result.losses:
        return result.eval_loss
    num_last = max(1, round(_SMOOTHED_SHARE * len(result.losses)))
    return statistics.fmean(result.losses[-num_last:])


def loss_judge(references: Sequence[TrialResult], *, is_two_sided: bool = False) -> LossJudge:
    """Return the judge that knows how much the losses of good runs vary."""
    losses = _finite_numbers([final_loss(each) for each in references], "loss")
    return LossJudge(reference=Spread.of(losses), is_two_sided=is_two_sided)


def accuracy_judge(references: Sequence[TrialResult]) -> AccuracyJudge:
    """Return the judge that knows how much the accuracies of good runs vary."""
    return AccuracyJudge(reference=Spread.of(_finite_numbers([each.accuracy for each in references], "accuracy")))


def _finite_numbers(values: Sequence[float | None], what: str) -> list[float]:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    if not numbers or len(numbers) < len(values):
        raise _judge_error(what, "a run of the reference has none, or one that is not finite")
    return numbers


def _ended_early(result: TrialResult) -> Verdict | None:
    if result.exit_code == 0:
        return None
    return Verdict(is_bad=True, text=f"ended with exit code {result.exit_code}")


def _judge_error(what: str, why: str) -> BisectError:
    return BisectError.explain(
        f"This training cannot be judged by its {what}.",
        why=f"{why}.",
        fix=f"choose another judge: --judge {', '.join(judge for judge in JUDGES if judge != what)}",
    )


_FIRST_OTHER_SEED = 1000
"""Far from the others, because scripts derive other seeds from their own by adding small numbers, such as the rank."""


def trial_seeds(number: int) -> list[int | None]:
    """Return the seeds that measure noise: the training's own (None) and others; the same in a bisection and a plan."""
    return [None, *range(_FIRST_OTHER_SEED, _FIRST_OTHER_SEED + number - 1)]


References = Callable[[], Sequence[TrialResult]]
"""Trains the reference with several seeds when it is called; many searches need no reference."""


def check_judge(name: str) -> None:
    """Raise if the judge, or its rule, does not exist."""
    kind, _, code = name.partition(":")
    if name in JUDGES and not code:
        return
    if kind != "rule" or not code:
        raise BisectError.explain(f"There is no judge '{name}'.", why=f"the judges are {', '.join(JUDGES)}.")
    # Imported here: few searches need findings.
    from roundoff.diagnose.diagnosis import PROCEDURE

    if code not in PROCEDURE:
        close = difflib.get_close_matches(code, PROCEDURE, n=1, cutoff=0.5)
        raise BisectError.explain(
            f"There is no rule '{code}'.",
            why="--judge rule:CODE takes the code of a finding.",
            fix=f"did you mean 'rule:{close[0]}'?" if close else "roundoff diagnose prints the codes of a run.",
        )


def choose_judge(
    name: str, *, bad: TrialResult, good: TrialResult, references: References, is_two_sided: bool = False
) -> Judge:
    """Return the requested judge; `auto` takes the first one that finds the bad run bad.

    If none does, it is the loss judge, whose verdict says how close the two runs are.
    """
    if name == "nonfinite":
        return NonFiniteJudge()
    if name == "exit":
        return ExitJudge()
    if name.startswith("rule:"):
        return RuleJudge(code=name.removeprefix("rule:"))
    if name == "loss":
        return loss_judge(references(), is_two_sided=is_two_sided)
    if name == "accuracy":
        return accuracy_judge(references())
    return _first_failing_judge(bad, good, references, is_two_sided=is_two_sided)


def check_noise(judge: Judge, verdict: Verdict) -> None:
    """Raise if a run that was judged good may be bad all the same, because good runs vary too much to tell."""
    if isinstance(judge, LossJudge | AccuracyJudge) and judge.reference.is_too_noisy and not verdict.is_bad:
        raise BisectError.explain(
            f"The runs are too noisy to tell whether anything is bad: {verdict.text}.",
            why=f"good runs vary too much: the reference has {judge.reference.text}.",
            fix="raise --seeds, train for more steps, or choose another --judge.",
        )


def _first_failing_judge(bad: TrialResult, good: TrialResult, references: References, *, is_two_sided: bool) -> Judge:
    for judge in (ExitJudge(), NonFiniteJudge()):
        if judge(bad).is_bad:
            return judge
    has_loss = bool(good.losses) or good.eval_loss is not None
    by_loss = loss_judge(references(), is_two_sided=is_two_sided) if has_loss else None
    if by_loss is not None and by_loss(bad).is_bad:
        return by_loss
    by_accuracy = accuracy_judge(references()) if good.accuracy is not None else None
    if by_accuracy is not None and by_accuracy(bad).is_bad:
        return by_accuracy
    return by_loss or by_accuracy or ExitJudge()
