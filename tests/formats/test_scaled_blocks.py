"""Blocks with exact scales: NVFP4, fp8 in blocks and rows, integers; by their definition and by hand."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from roundoff.errors import FormatError
from roundoff.formats import ScaledBlocks, format_named, known_formats, round_to

NAMES = [fmt.name for fmt in known_formats() if isinstance(fmt, ScaledBlocks)]


def scaled(name: str) -> ScaledBlocks:
    fmt = format_named(name)
    assert isinstance(fmt, ScaledBlocks)
    return fmt


def by_definition(x: Tensor, fmt: ScaledBlocks) -> Tensor:
    """Round a matrix block by block, in fp32 as devices do, each element with `round_to` its own format."""
    result = torch.empty_like(x)
    rows, columns = fmt.block_rows or x.shape[0], fmt.block_size or x.shape[1]
    largest = torch.tensor(fmt.element.largest)
    of_tensor = x.abs().max() / (448 * largest)
    for top in range(0, x.shape[0], rows):
        for left in range(0, x.shape[1], columns):
            block = x[top : top + rows, left : left + columns]
            amax = block.abs().max()
            if fmt.scale == "e4m3":
                scale = round_to((amax / largest / of_tensor).clamp(2.0**-6, 448.0), "e4m3")
                into, back = 1 / of_tensor / scale, of_tensor * scale
            else:
                into = largest / amax
                if fmt.scale == "power_of_two":
                    into = torch.exp2(torch.floor(torch.log2(into)))
                back = 1 / into
            element = round_to(block * into, fmt.element, overflow="saturate")
            result[top : top + rows, left : left + columns] = element * back
    return result


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 7), (20, 40), (130, 260)])
def test_equals_its_definition(name, shape, either_kernel):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, 12, shape, generator=generator)
    assert torch.equal(round_to(x, name), by_definition(x, scaled(name)))


def test_one_block_of_nvfp4_by_hand():
    # The tensor's scale is 6 / (448 * 6), so the block's is 448 times that: exactly 1.
    x = torch.tensor([6.0, 5.1, 4.9, 2.5, 2.4, 1.25, 0.26, -0.2])
    assert round_to(x, "nvfp4").tolist() == pytest.approx([6.0, 6.0, 4.0, 2.0, 2.0, 1.0, 0.5, 0.0], rel=1e-6, abs=0)


def test_a_small_block_keeps_its_accuracy_beside_a_large_one():
    x = torch.cat([torch.full((16,), 6.0), torch.full((16,), 0.06)])
    assert round_to(x, "nvfp4")[16:].tolist() == pytest.approx([0.06] * 16, rel=0.05)
    assert torch.equal(round_to(x * 2.0**20, "nvfp4"), round_to(x, "nvfp4") * 2.0**20)


def test_powers_of_two_never_saturate_and_rows_use_their_whole_range():
    x = torch.tensor([[449.0, 1.0], [3.0, 1.0]])
    assert round_to(x, "fp8-1x128")[0, 0] == 448.0
    assert round_to(x, "fp8-row")[:, 0].tolist() == pytest.approx([449.0, 3.0], rel=1e-6)
    assert round_to(torch.tensor([127.0, 63.4, -0.6]), "int8-row").tolist() == [127.0, 63.0, -1.0]


def test_mxint8_has_multiples_of_a_64th_of_its_scale():
    x = torch.tensor([1.9, 1.999, -2.0 + 2**-7, 0.0151, 0.007, 1 / 64])
    assert round_to(x, "mxint8").tolist() == [122 / 64, 127 / 64, -127 / 64, 1 / 64, 0.0, 1 / 64]
    assert round_to(x * 2.0**30, "mxint8").tolist() == (round_to(x, "mxint8") * 2.0**30).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity_leave_the_rest_alone(name, either_kernel):
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 5.0
    spoilt = x.clone()
    spoilt[3, 4:7] = torch.tensor([math.nan, math.inf, -math.inf])
    clean = x.clone()
    clean[3, 4:7] = 0.0
    result, expected = round_to(spoilt, name), round_to(clean, name)
    assert math.isnan(result[3, 4])
    assert result[3, 5:7].tolist() == [math.inf, -math.inf]
    result[3, 4:7] = expected[3, 4:7]
    assert torch.equal(result, expected)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("with_out", [False, True])
def test_blocks_run_along_the_axis(axis, with_out, either_kernel):
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    fmt = dataclasses.replace(scaled("nvfp4"), axis=axis)
    expected = round_to(x.movedim(axis, -1).contiguous(), "nvfp4").movedim(-1, axis)
    out = torch.empty_like(x) if with_out else None
    result = round_to(x, fmt, out=out)
    assert torch.equal(result, expected)
    assert out is None or result is out


def test_stochastic_rounding_is_right_on_average():
    x = torch.full((4000, 16), 0.3)
    x[:, 0] = 6.0
    mean = round_to(x, "nvfp4", rounding="stochastic", generator=torch.Generator().manual_seed(0))[:, 1:].mean()
    assert mean == pytest.approx(0.3, rel=0.02)


def test_a_number_alone_and_an_axis_that_is_not_there():
    assert round_to(torch.tensor(3.0), "nvfp4") == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(FormatError, match="blocks along axis 2"):
        round_to(torch.ones(3, 3), dataclasses.replace(scaled("nvfp4"), axis=2))


def test_impossible_blocks_are_an_error():
    with pytest.raises(FormatError, match="blocks of 1 x -1"):
        dataclasses.replace(scaled("nvfp4"), block_size=-1)
    with pytest.raises(FormatError, match="a scale in 'e8m0'"):
        dataclasses.replace(scaled("nvfp4"), scale="e8m0")


def test_numbers_describe_the_format():
    bits = {name: scaled(name).num_bits for name in ("nvfp4", "nvfp4-16x16", "fp8-1x128", "int4-group32", "fp8-row")}
    assert bits == {"nvfp4": 4.5, "nvfp4-16x16": 4.03125, "fp8-1x128": 8.0625, "int4-group32": 5.0, "fp8-row": 8.0}
    for name in NAMES:
        fmt = scaled(name)
        assert 0 < fmt.smallest_subnormal <= fmt.smallest_normal < 1 < fmt.largest
        assert fmt.overflow == "saturate"
        assert fmt.eps == fmt.element.eps
