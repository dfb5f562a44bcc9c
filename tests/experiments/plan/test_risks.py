"""Which checks a format fails at one op."""

import pytest

from roundoff.experiments.plan.proposal import Risk, risk_of
from roundoff.experiments.plan.site_choices import site_ops
from roundoff.sensitivity.effects import LossEffect
from tests.experiments.measured_steps import effect, measured, rounded


def risk_of_one(one: LossEffect, *, loss_scale: float = 1.0) -> Risk | None:
    (unit,) = site_ops(measured(one))
    return risk_of(unit, one.fmt, loss_scale=loss_scale)


def test_a_format_that_suits_passes_all_checks() -> None:
    assert risk_of_one(effect("fc", "linear")) is None


def test_one_number_beyond_the_range_is_an_overflow() -> None:
    risk = risk_of_one(effect("attn", "matmul", absmax=2.9e6, value=rounded(overflow=0.01)))
    assert risk == Risk(kind="overflow", text="overflow: its result reaches 2.9e+06, the largest fp16 number is 65504")


def test_a_gradient_can_overflow_too() -> None:
    risk = risk_of_one(effect("fc", "linear", gradient=rounded(overflow=0.5), gradient_absmax=1e6))
    assert risk is not None
    assert risk.text == "overflow: its gradient reaches 1e+06, the largest fp16 number is 65504"


def test_what_comes_near_the_end_of_the_range_will_overflow_later() -> None:
    assert risk_of_one(effect("attn", "matmul", absmax=16000.0)) is None
    risk = risk_of_one(effect("attn", "matmul", absmax=20000.0))
    assert risk is not None
    assert risk.kind == "headroom"


def test_a_large_weight_is_not_feared_to_grow() -> None:
    assert risk_of_one(effect("fc", "linear", part="weight", absmax=20000.0)) is None


def test_gradients_that_become_zero_are_an_underflow() -> None:
    lost = rounded(underflow=0.9, subnormal=0.1, snr_db=4.0)
    risk = risk_of_one(effect("aux", "mul", gradient=lost, gradient_absmax=3e-9))
    assert risk is not None
    assert risk.kind == "underflow"
    assert risk.text == "underflow: of its gradients 90 % become 0 and 10 % subnormal in fp16; the largest is 3e-09"


def test_small_numbers_among_large_ones_may_become_zero() -> None:
    """What counts is how much of the gradient is lost, and not how many of its numbers."""
    assert risk_of_one(effect("fc", "linear", gradient=rounded(underflow=0.6, snr_db=45.0))) is None


@pytest.mark.parametrize(("loss_scale", "is_safe"), [(1.0, False), (16.0, False), (65536.0, True)])
def test_a_loss_scale_lifts_gradients_into_the_range(loss_scale: float, is_safe: bool) -> None:
    lost = rounded(underflow=0.9, snr_db=4.0)
    risk = risk_of_one(effect("fc", "linear", gradient=lost, gradient_absmax=1e-7), loss_scale=loss_scale)
    assert (risk is None) == is_safe


def test_a_result_that_rounding_destroys_is_lost() -> None:
    risk = risk_of_one(effect("norm", "var", value=rounded(underflow=1.0, snr_db=0.0)))
    assert risk is not None
    assert risk.text == "underflow: of its result 100 % become 0 in fp16; the signal-to-noise ratio is 0 dB"


def test_a_format_with_scales_of_its_own_does_not_overflow() -> None:
    assert (
        risk_of_one(effect("fc", "linear", fmt="mxfp8", absmax=1e6, value=rounded(overflow=0.1, snr_db=25.0))) is None
    )


@pytest.mark.parametrize(("snr_db", "is_safe"), [(19.0, True), (6.0, False)])
def test_few_bits_with_scales_of_their_own_are_noisy_and_no_underflow(snr_db: float, is_safe: bool) -> None:
    noisy = rounded(underflow=0.06, snr_db=snr_db)
    assert (risk_of_one(effect("fc", "linear", fmt="nvfp4", gradient=noisy)) is None) == is_safe
