"""Chooses who judges a bisection, from a bad run, a good one, and the noise of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from roundoff.experiments.judges import (
    ExitJudge,
    Judge,
    NonFiniteJudge,
    RuleJudge,
    accuracy_judge,
    loss_judge,
)
from roundoff.experiments.trial import TrialResult

References = Callable[[], Sequence[TrialResult]]
"""Trains the reference under several seeds, when it is called: most searches need none of that."""


def judge_for(asked: str, *, bad: TrialResult, good: TrialResult, references: References) -> Judge:
    """Return the judge that was asked for; `auto` takes the first that finds the bad run bad.

    Where none does, it is the loss, which then says how little the two are apart.
    """
    if asked == "nonfinite":
        return NonFiniteJudge()
    if asked == "exit":
        return ExitJudge()
    if asked.startswith("rule:"):
        return RuleJudge(code=asked.removeprefix("rule:"))
    if asked == "loss":
        return loss_judge(references())
    if asked == "accuracy":
        return accuracy_judge(references())
    return _by_itself(bad, good, references)


def _by_itself(bad: TrialResult, good: TrialResult, references: References) -> Judge:
    for judge in (ExitJudge(), NonFiniteJudge()):
        if judge(bad).is_bad:
            return judge
    by_loss = loss_judge(references()) if good.losses or good.eval_loss is not None else None
    if by_loss is not None and by_loss(bad).is_bad:
        return by_loss
    by_accuracy = accuracy_judge(references()) if good.accuracy is not None else None
    if by_accuracy is not None and by_accuracy(bad).is_bad:
        return by_accuracy
    return by_loss or by_accuracy or ExitJudge()
