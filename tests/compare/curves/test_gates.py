"""Gates: what they measure, and what the noise between reference runs excuses."""

import math

import pytest

from roundoff.compare.curves.curve import LossCurve
from roundoff.compare.curves.gates import measure_gate, parse_gate
from roundoff.errors import CompareError, UsageError


def curve(values: list[float], first: int = 0) -> LossCurve:
    return LossCurve(name="x", steps=tuple(range(first, first + len(values))), values=tuple(values))


FLAT = curve([2.0] * 40)


def test_the_mean_loss_is_compared_over_common_steps():
    found = measure_gate(parse_gate("mean-loss=2%"), [FLAT], curve([2.1] * 30, first=10))
    assert found.gap == pytest.approx(0.05)
    assert found.num_steps == 30
    assert not found.is_passed
    assert measure_gate(parse_gate("mean-loss=5.1%"), [FLAT], curve([2.1] * 30)).is_passed
    assert not measure_gate(parse_gate("mean-loss=2%"), [FLAT], curve([1.9] * 40)).is_passed


def test_the_largest_gap_at_the_same_step_is_found():
    values = [2.0] * 20 + [2.5] * 10 + [2.0] * 10
    found = measure_gate(parse_gate("matched-step=0.01"), [FLAT], curve(values))
    assert found.gap == pytest.approx(0.5)
    assert 20 <= found.step < 30
    assert measure_gate(parse_gate("matched-step=0.6"), [FLAT], curve(values)).is_passed
    assert measure_gate(parse_gate("matched-step=10%"), [FLAT], curve(values)).gap == pytest.approx(0.25)


def test_a_gap_that_the_reference_runs_have_themselves_is_no_failure():
    references = [curve([2.0 + d] * 40) for d in (-0.1, 0.0, 0.1)]
    candidate = curve([2.12] * 40)
    assert not measure_gate(parse_gate("mean-loss=2%"), references[1:2], candidate).is_passed
    found = measure_gate(parse_gate("mean-loss=2%"), references, candidate)
    assert found.noise == pytest.approx(0.15 / 1.95, rel=0.1)
    assert found.is_passed
    assert not measure_gate(parse_gate("mean-loss=2%"), references, curve([2.3] * 40)).is_passed


def test_a_candidate_that_is_not_finite_fails():
    found = measure_gate(parse_gate("mean-loss=50%"), [FLAT], curve([2.0] * 7 + [math.nan] * 33))
    assert not found.is_passed
    assert found.step == 7


def test_nothing_in_common_or_a_broken_reference_is_an_error():
    with pytest.raises(CompareError, match="has no step to compare"):
        measure_gate(parse_gate("mean-loss=2%"), [FLAT], curve([1.0], first=90))
    with pytest.raises(CompareError, match="the reference is not finite"):
        measure_gate(parse_gate("mean-loss=2%"), [curve([math.inf] * 3)], FLAT)


@pytest.mark.parametrize(
    "text", ["mean-loss", "mean-loss=", "mean-loss=x", "mean-loss=-1%", "loss=2%", "mean-loss=inf"]
)
def test_an_invalid_gate_is_refused(text: str):
    with pytest.raises(UsageError, match="Invalid --gate"):
        parse_gate(text)
