import math

import pytest
import torch

from roundoff.errors import FormatError
from roundoff.formats import FixedPoint, round_to


def quantized_by_formula(x, *, scale, num_bits):
    """The compatible quantizer, as its definition says."""
    step = 2 * scale / 2**num_bits
    return torch.clamp(torch.round(x / step) * step, -scale, scale)


@pytest.mark.parametrize(
    ("values", "scale", "num_bits", "expected", "step"),
    [
        ([0.2513, -0.5, 0.0], 0.5, 2, [0.25, -0.5, 0.0], 0.25),
        ([0.2513, -0.52, 0.0], 1.0, 2, [0.5, -0.5, 0.0], 0.5),
        ([0.2513, -0.52, 0.0], 2.0, 4, [0.25, -0.5, 0.0], 0.25),
        ([0.2513, -0.52, 0.0], 0.52, 4, [0.26, -0.52, 0.0], 0.065),
        ([0.5, 0.26], 0.5, 2, [0.5, 0.25], 0.25),
    ],
)
def test_the_compatible_one_gives_what_the_original_gave(values, scale, num_bits, expected, step, either_kernel):
    fmt = FixedPoint.covering(scale, num_bits=num_bits, compat="nics")
    assert fmt.step == pytest.approx(step)
    assert round_to(torch.tensor(values), fmt).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("num_bits", range(1, 11))
@pytest.mark.parametrize("scale", [0.5, 0.52, 4.0, 1e-3])
def test_the_compatible_one_equals_its_formula(num_bits, scale, either_kernel):
    scale = torch.tensor(scale).item()  # as fp32 holds it
    x = torch.cat([torch.randn(5000) * scale, torch.linspace(-2, 2, 1001) * scale])
    fmt = FixedPoint.covering(scale, num_bits=num_bits, compat="nics")
    assert torch.equal(round_to(x, fmt), quantized_by_formula(x, scale=scale, num_bits=num_bits))


def test_the_compatible_one_has_one_number_more_than_codes():
    x = torch.linspace(-3, 3, 10_001)
    assert round_to(x, FixedPoint.covering(1.0, num_bits=3, compat="nics")).unique().numel() == 2**3 + 1
    assert round_to(x, FixedPoint.covering(1.0, num_bits=3)).unique().numel() == 2**3


def test_twos_complement_ends_one_step_before_its_scale(either_kernel):
    fmt = FixedPoint.covering(1.0, num_bits=8)
    assert (fmt.lowest_code, fmt.highest_code, fmt.lowest, fmt.largest) == (-128, 127, -1.0, 127 / 128)
    assert round_to(torch.tensor([1.0, -1.0, 5.0, -5.0]), fmt).tolist() == [127 / 128, -1.0, 127 / 128, -1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_rounding_lands_where_it_says(dtype, either_kernel):
    x = torch.tensor([0.3, -0.3, 0.125, -0.125, 0.375, 0.0, 0.25, 1e-6, -1e-6], dtype=dtype)
    fmt = FixedPoint(num_bits=8, step=0.25)
    expected = {
        "nearest": [0.25, -0.25, 0.0, 0.0, 0.5, 0.0, 0.25, 0.0, 0.0],
        "toward_zero": [0.25, -0.25, 0.0, 0.0, 0.25, 0.0, 0.25, 0.0, 0.0],
        "up": [0.5, -0.25, 0.25, 0.0, 0.5, 0.0, 0.25, 0.25, 0.0],
        "down": [0.25, -0.5, 0.0, -0.25, 0.25, 0.0, 0.25, 0.0, -0.25],
    }
    for rounding, values in expected.items():
        assert round_to(x, fmt, rounding=rounding).tolist() == values, rounding


def test_a_quotient_that_underflows_still_rounds_up(either_kernel):
    fmt = FixedPoint(num_bits=8, step=2.0**60)
    assert round_to(torch.tensor([1e-45, -1e-45]), fmt, rounding="up").tolist() == [2.0**60, 0.0]


def test_nan_and_infinities_pass_through(either_kernel):
    result = round_to(torch.tensor([math.nan, math.inf, -math.inf, 3.0]), FixedPoint(num_bits=8, step=0.25))
    assert math.isnan(result[0])
    assert result[1:].tolist() == [math.inf, -math.inf, 3.0]


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        (FixedPoint(num_bits=8, step=2.0**-7), "q1.7"),
        (FixedPoint(num_bits=8, step=1.0), "q8.0"),
        (FixedPoint(num_bits=4, step=0.25, compat="nics"), "q2.2-nics"),
        (FixedPoint(num_bits=4, step=0.065), "fixed4(step 0.065)"),
        (FixedPoint(num_bits=4, step=8.0), "fixed4(step 8)"),
    ],
)
def test_its_name_says_where_the_point_is(fmt, name):
    assert fmt.name == name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_bits": 0, "step": 1.0}, "cannot have 0 bits"),
        ({"num_bits": 25, "step": 1.0}, "cannot have 25 bits"),
        ({"num_bits": 8, "step": 0.0}, "cannot have the step 0.0"),
        ({"num_bits": 8, "step": math.nan}, "cannot have the step nan"),
        ({"num_bits": 8, "step": 1.0, "compat": "qtorch"}, "Invalid compat='qtorch'"),
    ],
)
def test_what_cannot_be_is_an_error(arguments, message):
    with pytest.raises(FormatError, match=message):
        FixedPoint(**arguments)
