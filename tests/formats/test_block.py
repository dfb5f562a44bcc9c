import dataclasses
import math

import pytest
import torch
from torch import Tensor

from roundoff.errors import FormatError
from roundoff.formats import BlockFormat, SmallFloat, format_named, round_to

MX = ["mxfp8", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp6-e3m2", "mxfp4"]
EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def block_format(name: str) -> BlockFormat:
    fmt = format_named(name)
    assert isinstance(fmt, BlockFormat)
    return fmt


def nearest_element(value: float, element: SmallFloat, scale: float) -> float:
    """Round half to even on the element's numbers times `scale`, and saturate."""
    exponent = max(math.frexp(value / scale)[1] - 1, element.min_exponent)
    spacing = 2.0 ** (exponent - element.mantissa_bits) * scale
    return max(-element.largest * scale, min(element.largest * scale, round(value / spacing) * spacing))


def by_definition(row: list[float], fmt: BlockFormat) -> list[float]:
    """Round one row, block by block, number by number."""
    result = []
    for start in range(0, len(row), fmt.block_size):
        block = row[start : start + fmt.block_size]
        amax = max((abs(value) for value in block if math.isfinite(value)), default=0.0)
        shared = math.frexp(amax)[1] - 1 - fmt.element.max_exponent if amax else -127
        scale = 2.0 ** max(-127, min(127, shared))
        result += [nearest_element(value, fmt.element, scale) if math.isfinite(value) else value for value in block]
    return result


def test_one_block_by_hand():
    # The largest, 5, takes the exponent 2, that of e2m1's largest number: the scale is 1.
    x = torch.tensor([5.0, 0.2, 0.25, 0.3, -2.6, 1.25])
    assert round_to(x, "mxfp4").tolist() == [4.0, 0.0, 0.0, 0.5, -3.0, 1.0]
    assert round_to(x * 2.0**20, "mxfp4").tolist() == [value * 2.0**20 for value in (4.0, 0.0, 0.0, 0.5, -3.0, 1.0)]


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("length", [32, 64, 33, 1, 100])
def test_equals_its_definition(name, dtype, length, either_kernel):
    generator = torch.Generator().manual_seed(length)
    magnitudes = 2.0 ** torch.randint(-12, 12, (8, length), generator=generator)
    x = (torch.randn(8, length, generator=generator) * magnitudes).to(dtype)
    fmt = block_format(name)
    expected = [by_definition(row, fmt) for row in x.double().tolist()]
    assert torch.equal(round_to(x, fmt).double(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", MX)
def test_equals_its_definition_at_either_end_of_the_scale(name, either_kernel):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 32, generator=generator, dtype=torch.float64)
    exponents = torch.cat([torch.arange(-150, -118), torch.arange(96, 128)]).double()[:, None]
    for dtype in (torch.float32, torch.float64):
        rows = (x.clamp(-1.9, 1.9) * 2.0**exponents).to(dtype)
        fmt = block_format(name)
        expected = torch.tensor([by_definition(row, fmt) for row in rows.double().tolist()], dtype=torch.float64)
        assert torch.equal(round_to(rows, fmt).double(), expected)


def test_a_scale_beyond_its_range_saturates():
    x = torch.tensor([1e300, 1.0], dtype=torch.float64)
    assert round_to(x, "mxfp8").tolist() == [448.0 * 2.0**127, 0.0]


@pytest.mark.parametrize("name", MX)
def test_nan_and_infinity_leave_the_rest_of_their_block_alone(name, either_kernel):
    x = torch.randn(64)
    spoilt = torch.cat([x, torch.tensor([math.nan, math.inf, -math.inf])])
    fmt = dataclasses.replace(block_format(name), block_size=67)
    clean = round_to(torch.cat([x, torch.zeros(3)]), fmt)
    result = round_to(spoilt, fmt)
    assert torch.equal(result[:64], clean[:64])
    assert math.isnan(result[64])
    assert result[65:].tolist() == [math.inf, -math.inf]


def test_a_block_of_zeros_or_of_nothing_finite_stays_as_it_is(either_kernel):
    x = torch.tensor([[0.0, -0.0], [math.nan, math.inf]])
    result = round_to(x, "mxfp8")
    assert result[0].tolist() == [0.0, 0.0]
    assert result[0].signbit().tolist() == [False, True]
    assert math.isnan(result[1, 0])
    assert result[1, 1] == math.inf


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("with_out", [False, True])
def test_blocks_run_along_the_axis(axis, with_out, either_kernel):
    x = torch.randn(40, 3, 50)
    fmt = dataclasses.replace(block_format("mxfp4"), axis=axis)
    expected = round_to(x.movedim(axis, -1).contiguous(), "mxfp4").movedim(-1, axis)
    out = torch.empty_like(x) if with_out else None
    result = round_to(x, fmt, out=out)
    assert torch.equal(result, expected)
    assert out is None or result is out


def test_an_axis_the_tensor_does_not_have_is_an_error():
    fmt = dataclasses.replace(block_format("mxfp4"), axis=2)
    with pytest.raises(FormatError, match="blocks along axis 2"):
        round_to(torch.ones(3, 3), fmt)


def test_each_rounding_stays_between_its_neighbours(either_kernel):
    x = torch.randn(100, 32)
    down, up = round_to(x, "mxfp6-e2m3", rounding="down"), round_to(x, "mxfp6-e2m3", rounding="up")
    zero = round_to(x, "mxfp6-e2m3", rounding="toward_zero")
    stochastic = round_to(x, "mxfp6-e2m3", rounding="stochastic")
    saturated = (up < x) | (down > x)  # beyond the largest element there is only one neighbour
    assert saturated.double().mean() < 0.02
    assert ((down <= x) & (x <= up) | saturated).all()
    assert torch.equal(zero, torch.where(x > 0, down, up))
    assert ((stochastic == down) | (stochastic == up)).all()


def test_counts_its_share_of_the_scale():
    assert [block_format(name).num_bits for name in MX] == [8.25, 8.25, 6.25, 6.25, 4.25]


def test_impossible_blocks_are_an_error():
    with pytest.raises(FormatError, match="blocks of 0"):
        dataclasses.replace(block_format("mxfp4"), block_size=0)
    element = SmallFloat.ieee(11, 52, name="fp64")
    with pytest.raises(FormatError, match="cannot scale elements of 'fp64'"):
        BlockFormat(name="mine", element=element)


def test_any_small_float_will_do_as_element():
    fmt = BlockFormat(name="mine", element=SmallFloat.ieee(3, 4), block_size=16)
    x: Tensor = torch.randn(4, 40)
    expected = [by_definition(row, fmt) for row in x.double().tolist()]
    assert torch.equal(round_to(x, fmt).double(), torch.tensor(expected, dtype=torch.float64))
