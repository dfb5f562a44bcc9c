"""What a plan has to meet, as people write it."""

import pytest

from roundoff.errors import PlanError
from roundoff.experiments.plan.plan_session import Target, target_of


def test_without_any_the_loss_stays_within_half_a_percent() -> None:
    assert target_of(None) == Target(loss=0.005)


@pytest.mark.parametrize(("text", "loss"), [("loss=2%", 0.02), ("loss=0.01", 0.01), (" loss=1e-3 ", 0.001)])
def test_a_loss_is_a_share_of_itself(text: str, loss: float) -> None:
    assert target_of(text).loss == pytest.approx(loss)


@pytest.mark.parametrize("text", ["accuracy=1%", "loss", "loss=", "loss=-1%", "5%"])
def test_what_is_no_target_is_shown_as_it_was_written(text: str) -> None:
    with pytest.raises(PlanError, match="Invalid --target") as caught:
        target_of(text)
    assert f"'{text}'" in str(caught.value)
    assert "loss=0.5%" in str(caught.value)


def test_two_targets_are_one_too_many() -> None:
    with pytest.raises(PlanError, match="2 are given"):
        target_of("loss=1%", bits=12)


def test_a_target_of_nothing_cannot_be_met() -> None:
    with pytest.raises(PlanError, match="must be above 0"):
        target_of(None, bits=0)
