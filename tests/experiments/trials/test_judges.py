import math

import pytest

from roundoff.errors import BisectError
from roundoff.experiments.trials.judges import (
    AccuracyJudge,
    ExitJudge,
    LossJudge,
    NonFiniteJudge,
    RuleJudge,
    Spread,
    accuracy_judge,
    final_loss,
    loss_judge,
)
from roundoff.experiments.trials.trial import TrialResult


def losing(*losses: float, **more: object) -> TrialResult:
    return TrialResult(losses=losses, **more)


def test_a_loss_that_is_not_finite_is_bad_and_named_with_its_step():
    judge = NonFiniteJudge()
    verdict = judge(losing(2.0, math.nan, 1.0))
    assert (verdict.is_bad, verdict.text) == (True, "loss nan at step 1")
    assert judge(losing(2.0, 1.0)).is_bad is False
    assert judge(losing(2.0, eval_loss=math.inf)).is_bad is True


def test_the_loss_is_that_of_the_last_fifth_of_the_steps():
    assert final_loss(losing(*range(10, 0, -1))) == 1.5
    assert final_loss(losing(3.0)) == 3.0
    assert final_loss(TrialResult(eval_loss=0.5)) == 0.5
    assert final_loss(TrialResult()) is None


def test_a_loss_within_the_noise_of_the_reference_is_good():
    judge = loss_judge([losing(1.00), losing(1.02), losing(0.98)])
    assert isinstance(judge, LossJudge)
    assert judge.reference.text == "1 +- 0.02 of 3 runs"
    assert judge.limit == pytest.approx(1 + 2.920 * 0.02 * math.sqrt(4 / 3))
    assert judge(losing(1.06)).is_bad is False
    verdict = judge(losing(1.07))
    assert (verdict.is_bad, verdict.text) == (True, "loss 1.07, at most 1.067 is good")
    assert judge(losing(math.nan)).is_bad is True


def test_references_that_are_all_alike_leave_a_hundredth():
    assert Spread.of([2.0, 2.0, 2.0]).margin == pytest.approx(0.02)
    assert Spread.of([2.0]).margin == pytest.approx(0.02)


def test_accuracy_is_judged_from_the_other_side():
    judge = accuracy_judge([TrialResult(accuracy=0.9), TrialResult(accuracy=0.91), TrialResult(accuracy=0.89)])
    assert isinstance(judge, AccuracyJudge)
    assert judge(TrialResult(accuracy=0.87)).is_bad is False
    assert judge(TrialResult(accuracy=0.86)).is_bad is True
    assert judge(TrialResult(accuracy=0.5)).is_bad is True
    assert judge(TrialResult(accuracy=0.99)).is_bad is False


def test_a_rule_is_looked_for_among_all_findings():
    judge = RuleJudge(code="overflow")
    assert judge(TrialResult(rules=("spike", "overflow"))).is_bad is True
    assert judge(TrialResult(rules=("spike",))).text == "found spike"
    assert judge(TrialResult()).text == "found nothing"


def test_an_exit_status_other_than_0_is_bad():
    assert ExitJudge()(TrialResult(exit_code=3)).is_bad is True
    assert ExitJudge()(TrialResult()).is_bad is False


def test_a_training_that_did_not_end_is_bad_for_every_judge_of_numbers():
    failed = losing(1.0, exit_code=1, accuracy=1.0)
    good = [losing(1.0, accuracy=1.0)] * 2
    for judge in (NonFiniteJudge(), loss_judge(good), accuracy_judge(good)):
        assert judge(failed).text == "ended with exit code 1"
        assert judge(failed).is_bad


def test_a_judge_that_cannot_be_says_which_others_there_are():
    with pytest.raises(BisectError, match=r"cannot be judged by its accuracy[\s\S]*--judge auto, nonfinite, loss"):
        accuracy_judge([TrialResult()])
    with pytest.raises(BisectError, match="not finite"):
        loss_judge([losing(math.nan)])
    with pytest.raises(BisectError, match="no loss was observed"):
        loss_judge([losing(1.0)])(TrialResult())
