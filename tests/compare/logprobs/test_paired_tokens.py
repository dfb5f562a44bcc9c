"""The statistics that training on samples depends on, against their definitions; and large tables, in part."""

import numpy as np
import pytest

from roundoff.compare.logprobs.paired_tokens import measure_ratios


def test_ratios_are_those_of_the_reference_to_the_candidate():
    reference, candidate = np.log([0.5, 0.2, 0.9, 0.1]), np.log([0.5, 0.4, 0.6, 0.1])
    found = measure_ratios(candidate - reference)
    ratio = np.array([1.0, 0.5, 1.5, 1.0])
    assert found.k1 == pytest.approx(-np.log(ratio).mean())
    assert found.k3 == pytest.approx((ratio - 1 - np.log(ratio)).mean())
    assert found.mean_ratio == pytest.approx(1.0)
    assert found.share_outside == 0.5
    assert found.ess == pytest.approx(ratio.sum() ** 2 / (4 * (ratio**2).sum()))
    assert found.max_abs == pytest.approx(np.log(2))


def test_many_tokens_are_measured_as_few_are():
    difference = np.random.default_rng(0).normal(0, 0.1, 100_000)
    found = measure_ratios(difference)
    assert found.rms == pytest.approx(np.sqrt((difference**2).mean()))
    assert found.k3 == pytest.approx((np.exp(-difference) - 1 + difference).mean())
