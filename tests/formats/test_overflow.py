"""What becomes of values beyond the largest number."""

import math

import pytest
import torch

from roundoff.formats import round_to
from roundoff.kernels.rounding_rules import ROUNDINGS

EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("overflow", ["saturate", "infinity", "nan"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_beyond_the_largest_the_rule_holds_except_for_rounding_towards_zero(
    rounding, overflow, dtype, either_kernel, same
):
    x = torch.tensor([1000.0, -1000.0, math.inf, -math.inf], dtype=dtype)
    plus, minus = {"saturate": (448, -448), "infinity": (math.inf, -math.inf), "nan": (math.nan, math.nan)}[overflow]
    expected = [plus, minus, plus, minus]
    if rounding in ("toward_zero", "down"):
        expected[0] = 448
    if rounding in ("toward_zero", "up"):
        expected[1] = -448
    assert same(round_to(x, "e4m3", rounding=rounding, overflow=overflow), torch.tensor(expected, dtype=dtype))


def test_up_to_the_middle_beyond_the_largest_nearest_stays_there():
    x = torch.tensor([65519.0, 65520.0, 464.0])
    assert round_to(x[:2], "fp16").tolist() == [65504.0, math.inf]
    assert round_to(x[2:], "e4m3", overflow="nan").item() == 448.0
    assert math.isnan(round_to(x[2:].nextafter(torch.tensor(math.inf)), "e4m3", overflow="nan").item())


def test_a_dtype_that_reaches_less_far_than_the_format_ends_on_its_grid():
    x = torch.tensor([65504.0], dtype=torch.float16)
    assert round_to(x, "bf16").item() == math.inf
    assert round_to(x, "bf16", overflow="saturate").item() == 65280.0
    assert round_to(torch.tensor([1e5], dtype=torch.bfloat16), "fp16", overflow="saturate").item() == 65280.0
