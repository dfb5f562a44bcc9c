"""Blocks with their own factor: the compiled loop and torch give the same bits, for every scale, shape and rounding."""

import math

import pytest
import torch
from torch import Tensor

from roundoff.kernels.compiled import compiled_kernels
from roundoff.kernels.rounding_rules import BLOCK_SCALES, ROUNDINGS, FloatGrid
from roundoff.kernels.scaled_blocks import round_scaled_blocks
from tests.kernels.test_rounding import GRIDS, KEY, same

INT8 = FloatGrid(mantissa_bits=6, min_exponent=6, largest=127.0, overflow="saturate", signed_zero=False)
ELEMENTS = {"e2m1": GRIDS["e2m1"], "e4m3": GRIDS["e4m3"], "int8": INT8, "powers of two": GRIDS["powers of two"]}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    magnitudes = 2.0 ** torch.randint(-9, 9, shape, generator=generator)
    x = torch.randn(shape, generator=generator) * magnitudes
    flat = x.view(-1)
    flat[::37] = 0.0
    flat[5::211] = math.nan
    flat[7::311] = math.inf
    flat[11::401] = -math.inf
    return x.to(dtype)


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    if compiled_kernels() is None:
        pytest.skip("the compiled kernels are not built")
    return monkeypatch


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scale", BLOCK_SCALES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_both_versions_give_the_same_bits(element, scale, rounding, in_torch):
    results = []
    for kernels in ("compiled", "torch"):
        if kernels == "torch":
            in_torch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
        results.append(
            [
                round_scaled_blocks(
                    values(3, 37, 67, dtype=dtype),
                    ELEMENTS[element],
                    block=block,
                    scale=scale,
                    rounding=rounding,
                    key=KEY,
                )
                for dtype in DTYPES
                for block in [(1, 16), (1, 0), (16, 16), (0, 0)]
            ]
        )
    assert all(same(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("shape", [(), (1,), (40,), (0,), (3, 0), (2, 3, 20)])
def test_any_shape_is_rounded_like_rows(shape, either_kernel):
    x = values(*shape) if math.prod(shape) else torch.zeros(shape)
    x = torch.nan_to_num(x, 1.0, 2.0, -2.0)
    result = round_scaled_blocks(x, GRIDS["e4m3"], block=(1, 16))
    assert result.shape == x.shape
    rows = x.reshape(-1, shape[-1]) if len(shape) > 1 and x.numel() else x.reshape(1, -1)
    if x.numel():
        expected = torch.stack([round_scaled_blocks(row, GRIDS["e4m3"], block=(1, 16)) for row in rows])
        assert torch.equal(result.reshape(rows.shape), expected)


def test_writes_to_out_and_in_place(either_kernel):
    x = values(8, 40)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        given = x.to(dtype)
        expected = round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3")
        out = torch.empty_like(given)
        assert round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3", out=out) is out
        assert same(out, expected)
        assert same(round_scaled_blocks(given, GRIDS["e2m1"], block=(1, 16), scale="e4m3", out=given), expected)


def test_a_tensor_of_zeros_stays(either_kernel):
    for scale in BLOCK_SCALES:
        assert not round_scaled_blocks(torch.zeros(4, 32), GRIDS["e2m1"], block=(1, 16), scale=scale).any()
