"""What is counted and summed about rounding a tensor."""

from __future__ import annotations

import math

import pytest
import torch

from roundoff.formats import format_named, round_to
from roundoff.sensitivity.error_sums import _sums, _sums_within, inner_product, rounded_from, sums_of


def rounded(values: list[float], fmt: str):
    return rounded_from(sums_of(torch.tensor(values), format_named(fmt)).tolist())


def test_counts_overflow_among_finite_numbers():
    found = rounded([1.0, 7e4, -7e4, math.inf], "fp16")
    assert found.num_elements == 4
    assert found.overflow == 2 / 3


def test_saturating_is_overflow_in_a_format_without_infinity():
    assert rounded([1.0, 449.0, 1e4], "e2m1").overflow == 2 / 3
    assert rounded([6.0, -6.0], "e2m1").overflow == 0


def test_counts_what_becomes_zero_and_subnormal_among_numbers_other_than_zero():
    found = rounded([0.0, 1.0, 1e-9, 1e-6, 3e-5], "fp16")
    assert (found.underflow, found.subnormal) == (0.25, 0.5)


def test_the_error_is_in_units_of_the_formats_eps():
    x = 1 + 0.25 * 2.0**-7
    assert rounded([x, 1.0], "bf16").ulps == pytest.approx(0.125, rel=0.01)


def test_signal_to_noise_is_what_its_definition_says():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    error = (round_to(x, "e4m3") - x).double()
    wanted = 10 * math.log10(float(x.double().square().sum() / error.square().sum()))
    assert rounded(x.tolist(), "e4m3").snr_db == pytest.approx(wanted)
    assert rounded([1.0, 0.5], "bf16").snr_db == math.inf


def test_the_limits_of_a_block_format_are_those_of_each_block():
    x = torch.ones(2, 32)
    x[0] *= 2.0**-66
    x[0, 3] = 1.9 * 2.0**-66  # 7.6 times the scale of its block; the largest element is 6
    x[1, 5] = 1e-12
    found = rounded_from(sums_of(x, format_named("mxfp4")).tolist())
    assert found.underflow == 1 / 64
    assert found.overflow == pytest.approx(1 / 64)


def test_both_ways_of_summing_agree():
    x = torch.randn(300, generator=torch.Generator().manual_seed(1)) * 1e-2
    x[::7] = 0
    fmt = format_named("e4m3")
    arguments = (x, round_to(x, fmt), torch.tensor(fmt.largest), torch.tensor(fmt.smallest_normal))
    torch.testing.assert_close(_sums(*arguments, eps=fmt.eps), _sums_within(*arguments, eps=fmt.eps))


def test_tensors_of_more_than_one_piece_are_summed_whole():
    x = torch.randn(200, 501, generator=torch.Generator().manual_seed(2))
    assert rounded_from(sums_of(x, format_named("bf16")).tolist()).num_elements == x.numel()
    torch.testing.assert_close(inner_product(x, x), x.double().square().sum())


def test_products_that_are_not_finite_count_as_nothing():
    assert inner_product(torch.tensor([1.0, math.inf, 2.0]), torch.tensor([3.0, 1.0, math.nan])) == 3
