"""Chooses who judges a bisection, from a bad run, a good one, and the noise of the reference."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from roundoff.errors import BisectError
from roundoff.experiments.judges import (
    JUDGES,
    AccuracyJudge,
    ExitJudge,
    Judge,
    LossJudge,
    NonFiniteJudge,
    RuleJudge,
    Verdict,
    accuracy_judge,
    loss_judge,
)
from roundoff.experiments.trial import TrialResult

References = Callable[[], Sequence[TrialResult]]
"""Trains the reference under several seeds, when it is called: most searches need none of that."""


def check_judge(asked: str) -> None:
    """Raise if there is no such judge, or no such rule."""
    kind, _, code = asked.partition(":")
    if asked in JUDGES and not code:
        return
    if kind != "rule" or not code:
        raise BisectError.explain(f"There is no judge '{asked}'.", why=f"the judges are {', '.join(JUDGES)}.")
    # Imported here: few searches ask for findings.
    from roundoff.diagnose.rules import PROCEDURE

    if code not in PROCEDURE:
        close = difflib.get_close_matches(code, PROCEDURE, n=1, cutoff=0.5)
        raise BisectError.explain(
            f"There is no rule '{code}'.",
            why="--judge rule:CODE takes the code of a finding.",
            fix=f"did you mean 'rule:{close[0]}'?" if close else "roundoff diagnose names the codes of a run.",
        )


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


def refuse_noise(judge: Judge, verdict: Verdict) -> None:
    """Raise if a run that was judged to be good may be bad all the same: good runs are too far apart to tell."""
    if isinstance(judge, LossJudge | AccuracyJudge) and judge.reference.is_too_noisy and not verdict.is_bad:
        raise BisectError.explain(
            f"The runs are too noisy to tell whether anything is bad: {verdict.text}.",
            why=f"good runs are that far apart: the reference has {judge.reference.text}.",
            fix="raise --seeds, train for more steps, or judge by something else: --judge",
        )


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
