import pytest
import torch

from roundoff.formats import SmallFloat, format_named
from roundoff.kernels.rounding_rules import FloatGrid, holds, within


def grid_of(name: str) -> FloatGrid:
    fmt = format_named(name)
    assert isinstance(fmt, SmallFloat)
    return fmt.grid


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("fp64", {torch.float64, torch.float32, torch.bfloat16, torch.float16}),
        ("fp32", {torch.float32, torch.bfloat16, torch.float16}),
        ("tf32", {torch.bfloat16, torch.float16}),
        ("bf16", {torch.bfloat16}),
        ("fp16", {torch.float16}),
        ("e6m10", {torch.float16}),
        ("e5m23", {torch.float16}),
        ("e4m3", set()),
    ],
)
def test_knows_which_dtypes_a_format_holds_entirely(name, dtypes):
    every = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    assert {dtype for dtype in every if holds(grid_of(name), dtype)} == dtypes


@pytest.mark.parametrize(
    ("name", "dtype", "largest"),
    [
        ("fp16", torch.float32, 65504.0),
        ("fp16", torch.bfloat16, 65280.0),
        ("bf16", torch.float16, 65280.0),
        ("e4m3", torch.bfloat16, 448.0),
        ("fp64", torch.float16, 65504.0),
        ("e9m2", torch.float32, 1.75 * 2.0**127),
    ],
)
def test_the_largest_is_one_that_format_and_dtype_both_hold(name, dtype, largest):
    assert within(grid_of(name), dtype).largest == largest
