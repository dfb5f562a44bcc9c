import math

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.trials.judges import LossJudge, NonFiniteJudge, Spread, check_judge, check_noise, choose_judge
from roundoff.experiments.trials.trial import TrialResult

GOOD = TrialResult(losses=(1.0,), accuracy=0.9)


def chosen(bad: TrialResult, *, good: TrialResult = GOOD, requested: str = "auto") -> tuple[str, int]:
    """Return the judge's name, and how often the reference was trained for it."""
    trained: list[int] = []

    def references() -> list[TrialResult]:
        trained.append(1)
        return [good, good]

    return choose_judge(requested, bad=bad, good=good, references=references).name, len(trained)


def test_auto_takes_what_shows_the_bad_run_to_be_bad_and_trains_no_reference_in_vain():
    assert chosen(TrialResult(exit_code=1)) == ("exit", 0)
    assert chosen(TrialResult(losses=(math.nan,))) == ("nonfinite", 0)
    assert chosen(TrialResult(losses=(2.0,), accuracy=0.9)) == ("loss", 1)
    assert chosen(TrialResult(losses=(1.0,), accuracy=0.1)) == ("accuracy", 2)


def test_auto_says_by_the_loss_that_nothing_is_bad():
    assert chosen(GOOD)[0] == "loss"
    assert chosen(TrialResult(), good=TrialResult()) == ("exit", 0)


@pytest.mark.parametrize("requested", ["nonfinite", "exit", "rule:overflow", "loss", "accuracy"])
def test_a_requested_judge_is_used(requested: str):
    assert chosen(TrialResult(exit_code=1), requested=requested)[0] == requested
    check_judge(requested)


def test_judges_and_rules_that_do_not_exist_are_errors():
    for requested in ("los", "rule:", "rule"):
        with pytest.raises(BisectError, match=f"There is no judge '{requested}'"):
            check_judge(requested)
    with pytest.raises(BisectError, match=r"no rule 'overflo'[\s\S]*'rule:overflow'"):
        check_judge("rule:overflo")


def test_a_good_verdict_is_refused_where_the_noise_would_hide_a_bad_run():
    noisy = LossJudge(reference=Spread.of([0.5, 1.0, 1.5]))
    with pytest.raises(BisectError, match=r"too noisy to tell[\s\S]*1 \+- 0.5 of 3 runs[\s\S]*raise --seeds"):
        check_noise(noisy, noisy(GOOD))
    check_noise(noisy, noisy(TrialResult(losses=(9.0,))))
    calm = LossJudge(reference=Spread.of([0.98, 1.0, 1.02]))
    check_noise(calm, calm(GOOD))
    check_noise(NonFiniteJudge(), NonFiniteJudge()(GOOD))
