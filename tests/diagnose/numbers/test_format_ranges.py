"""What formats cut off, by histogram and by really rounding: the estimate is near."""

import numpy as np
import pytest
import torch
from torch import Tensor

from roundoff.diagnose.numbers.format_ranges import FORMATS, CutOff, cut_offs, fixed_range, range_of
from roundoff.formats import FixedPoint, format_named, round_to
from roundoff.kernels import histogram


def estimated(x: Tensor, name: str) -> CutOff:
    (cut,) = cut_offs(histogram(x).astype(np.uint16), absmax=float(x.abs().max()), ranges=[range_of(name)])
    return cut


@pytest.mark.parametrize("scale", [1e-7, 1e-3, 1.0, 300.0, 4e4])
@pytest.mark.parametrize("name", FORMATS)
def test_the_shares_are_near_to_what_rounding_really_does(name: str, scale: float):
    x = scale * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    fmt, cut = range_of(name), estimated(x, name)
    lost = (round_to(x, format_named(name)) == 0).double().mean()
    beyond = (x.abs() > fmt.largest).double().mean()
    rough = (x.abs() < fmt.smallest_normal).double().mean() - lost
    assert cut.lost == pytest.approx(float(lost), abs=0.02)
    assert cut.beyond == pytest.approx(float(beyond), abs=0.02)
    assert cut.rough == pytest.approx(float(rough), abs=0.02)


def test_nothing_is_beyond_a_format_that_holds_the_largest():
    x = torch.full((10,), 440.0)
    assert estimated(x, "e4m3") == CutOff(beyond=0.0, lost=0.0, rough=0.0)
    assert estimated(torch.full((10,), 1e6), "fp16").beyond > 0
    assert estimated(torch.zeros(3), "e4m3") == CutOff(beyond=0.0, lost=0.0, rough=0.0)


def test_all_is_lost_of_a_tensor_that_is_far_below():
    assert estimated(torch.full((10,), 1e-9), "e4m3") == CutOff(beyond=0.0, lost=1.0, rough=0.0)


def test_fixed_point_loses_what_is_below_half_a_step():
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    absmax = float(x.abs().max())
    fixed = fixed_range(absmax, num_bits=4)
    assert fixed is not None
    lost = (round_to(x, FixedPoint.covering(8.0, num_bits=4)) == 0).double().mean()
    (cut,) = cut_offs(histogram(x).astype(np.uint16), absmax=absmax, ranges=[fixed])
    assert cut.lost == pytest.approx(float(lost), abs=0.02)
    assert fixed_range(0.0, num_bits=4) is None
    assert fixed_range(float(np.finfo(np.float64).max), num_bits=4) is None


def test_infinities_are_beyond_every_format_that_reaches_no_further_than_the_tensors_own():
    ranges = [range_of(name) for name in ("bf16", "fp16", "e4m3")]
    x = torch.tensor([1.0, 2.0, 3.0])
    cuts = cut_offs(histogram(x).astype(np.uint16), absmax=3.0, ranges=ranges, infinite_share=0.25, own_largest=65504.0)
    assert [cut.beyond for cut in cuts] == [0.0, 0.25, 0.25]
    none_finite = cut_offs(np.zeros(64, dtype=np.uint16), absmax=0.0, ranges=ranges, infinite_share=1.0)
    assert [(cut.beyond, cut.lost, cut.rough) for cut in none_finite] == [(1.0, 0.0, 0.0)] * 3
