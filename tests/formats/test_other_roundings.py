"""Directed and stochastic rounding, and what every rounding has in common."""

import math

import pytest
import torch

from roundoff.formats import Rounding, SmallFloat, format_named, round_to
from roundoff.kernels.rounding_rules import ROUNDINGS

NARROW = ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m3", "e3m2", "e2m1", "e3m4"]
EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def small_float(name: str) -> SmallFloat:
    fmt = format_named(name)
    assert isinstance(fmt, SmallFloat)
    return fmt


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("rounding", ["up", "down", "toward_zero"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_directed_rounding_equals_a_search_in_all_numbers(name, rounding, dtype, numbers_of, points_of, either_kernel):
    fmt, numbers = small_float(name), numbers_of(small_float(name))
    x = points_of(fmt).to(dtype)
    x = x[x.double().abs() <= fmt.largest]
    above = numbers[torch.searchsorted(numbers, x.double())]
    below = numbers[torch.searchsorted(numbers, x.double(), right=True) - 1]
    toward_zero = torch.where(x > 0, below, above)
    expected = {"up": above, "down": below, "toward_zero": toward_zero}[rounding]
    assert torch.equal(round_to(x, fmt, rounding=rounding).double(), expected)


def test_stochastic_rounding_reaches_the_two_neighbours_and_nothing_else(numbers_of, points_of, either_kernel):
    for name in NARROW:
        fmt = small_float(name)
        x = points_of(fmt)
        x = x[x.abs() <= fmt.largest]
        down, up = round_to(x, fmt, rounding="down"), round_to(x, fmt, rounding="up")
        torch.manual_seed(5)
        for _ in range(4):
            result = round_to(x, fmt, rounding="stochastic")
            assert ((result == down) | (result == up)).all(), name


@pytest.mark.parametrize(
    ("name", "value"),
    [("e4m3", 1.03), ("e4m3", 0.0011), ("bf16", 1.001), ("fp16", 3e-8), ("fp16", 0.3), ("q1.7", 0.123), ("mxfp4", 1.1)],
)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stochastic_rounding_is_unbiased(name, value, sign, dtype):
    size = 1 << 18
    x = torch.full((size,), sign * value, dtype=dtype)
    generator = torch.Generator().manual_seed(6)
    result = round_to(x, name, rounding="stochastic", generator=generator).double()
    low, high = result.min(), result.max()
    assert low < x[0] < high
    deviation = (high - low) / 2 / math.sqrt(size)
    assert abs(result.mean() - x[0].double()) < 4 * deviation


def test_stochastic_rounding_gives_tiny_values_their_small_chance():
    x = torch.full((1 << 22,), 2.0**-40)  # fp16 counts from 2**-24: one element in 65536 should become that
    generator = torch.Generator().manual_seed(7)
    raised = (round_to(x, "fp16", rounding="stochastic", generator=generator) > 0).sum()
    assert 64 - 4 * 8 < raised < 64 + 4 * 8


def test_stochastic_rounding_leaves_what_the_format_holds(numbers_of):
    for name in NARROW:
        numbers = numbers_of(small_float(name)).float()
        assert torch.equal(round_to(numbers, name, rounding="stochastic"), numbers)


def test_stochastic_rounding_at_the_edge_overflows_only_as_often_as_it_should():
    x = torch.full((1 << 16,), 65508.0)  # an eighth of the way from 65504 to 65536, which fp16 does not have
    generator = torch.Generator().manual_seed(8)
    result = round_to(x, "fp16", rounding="stochastic", generator=generator)
    assert set(result.tolist()) == {65504.0, math.inf}
    assert 0.12 < result.isinf().double().mean() < 0.13


@pytest.mark.parametrize("name", ["fp16", "tf32", "e5m3", "e8m4", "e9m4", "e2m7", "mxfp6-e3m2", "q4.4"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rounding_twice_is_rounding_once(name, dtype, rounding, same, any_bits):
    x = any_bits(dtype, 20_000, seed=9)
    once = round_to(x, name, rounding=rounding)
    assert same(round_to(once, name, rounding=rounding), once)


@pytest.mark.parametrize("name", ["fp16", "tf32", "e5m3", "e8m4", "e9m4", "e2m7", "q4.4"])
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("rounding", ["nearest", "toward_zero", "up", "down"])
def test_larger_values_never_round_to_smaller_ones(name, dtype, rounding, any_bits):
    x = any_bits(dtype, 20_000, seed=10)
    x = x[~x.isnan()].sort().values
    rounded = round_to(x, name, rounding=rounding)
    assert (rounded[1:] >= rounded[:-1]).all()


@pytest.mark.parametrize("name", [*NARROW, "fp16", "tf32", "e8m4", "e9m4", "mxfp8"])
@pytest.mark.parametrize(("rounding", "mirrored"), [("nearest", "nearest"), ("toward_zero",) * 2, ("up", "down")])
def test_rounding_mirrors_at_zero(name: str, rounding: Rounding, mirrored: Rounding, any_bits):
    x = any_bits(torch.float32, 20_000, seed=11)
    assert torch.equal(
        round_to(-x, name, rounding=rounding).nan_to_num(), -round_to(x, name, rounding=mirrored).nan_to_num()
    )


@pytest.mark.parametrize("name", ["fp16", "tf32", "bf16", "e5m3", "e9m4", "e2m7"])
def test_results_bracket_the_value_and_nearest_takes_the_closer_end(name, any_bits):
    fmt = small_float(name)
    x = any_bits(torch.float32, 50_000, seed=12)
    x = x[x.double().abs() <= fmt.largest]
    down, up, nearest, zero = (
        round_to(x, fmt, rounding=rounding).double() for rounding in ("down", "up", "nearest", "toward_zero")
    )
    wide = x.double()
    assert ((down <= wide) & (wide <= up)).all()
    assert torch.equal(zero, torch.where(wide > 0, down, up))
    inside = nearest.isfinite() & down.isfinite() & up.isfinite()
    closer = torch.minimum(wide - down, up - wide)
    assert torch.equal((nearest - wide).abs()[inside], closer[inside])
