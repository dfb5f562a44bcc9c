"""Rounding to nearest: against torch's own casts, and against exact arithmetic."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.formats import SmallFloat, format_named, round_to

EIGHT_BITS = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}
NARROW = [*EIGHT_BITS, "e2m3", "e3m2", "e2m1", "e3m4"]


def small_float(name: str) -> SmallFloat:
    fmt = format_named(name)
    assert isinstance(fmt, SmallFloat)
    return fmt


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_equals_torchs_cast_on_every_code_and_middle_and_their_neighbours(name, points_of, either_kernel, same):
    x = points_of(small_float(name))
    assert x.numel() > 6 * 200
    assert same(round_to(x, name), x.to(EIGHT_BITS[name]).float())


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_holds_every_code_of_torchs_dtype(name, same):
    codes = torch.arange(256, dtype=torch.uint8).view(EIGHT_BITS[name]).float()
    expected = codes if name == "e5m2" else codes[codes.isfinite() | codes.isnan()]
    assert same(round_to(expected, name), expected)


@pytest.mark.parametrize("name", EIGHT_BITS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_torchs_cast_on_every_half_precision_number(name, dtype, either_kernel, same):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    assert same(round_to(x, name), x.float().to(EIGHT_BITS[name]).float().to(dtype))


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_equals_torchs_half_casts_on_millions_of_bit_patterns(name, dtype, same, any_bits):
    x = any_bits(torch.float32, 3_000_000, seed=1)
    assert same(round_to(x, name), x.to(dtype).float())


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_torch_version_equals_torchs_half_casts(name, dtype, monkeypatch, same, any_bits):
    monkeypatch.setattr("roundoff.kernels.compiled.compiled_kernels", lambda: None)
    x = any_bits(torch.float32, 300_000, seed=2)
    assert same(round_to(x, name), x.to(dtype).float())


@given(value=st.floats(width=32))
@settings(max_examples=300, deadline=None)
def test_equals_torchs_casts_on_any_float(value, same):
    x = torch.tensor([value])
    for name, dtype in {**EIGHT_BITS, "bf16": torch.bfloat16, "fp16": torch.float16}.items():
        assert same(round_to(x, name), x.to(dtype).float()), name


def test_fp16_numbers_go_to_bf16_as_torch_would_take_them_there_and_back(either_kernel, same):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    assert same(round_to(x, "bf16"), x.to(torch.bfloat16).to(torch.float16))


def test_bf16_numbers_go_to_fp16_as_torch_would_take_them_there_and_back(either_kernel, same):
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    assert same(round_to(x, "fp16"), x.to(torch.float16).to(torch.bfloat16))


def test_fp64_numbers_go_to_fp32_as_torch_takes_them(either_kernel, same, any_bits):
    x = torch.cat([any_bits(torch.float64, 200_000, seed=3), any_bits(torch.float32, 100_000, seed=4).double() * 1.1])
    assert same(round_to(x, "fp32"), x.float().double())


def exactly_nearest(value: float, fmt: SmallFloat) -> float:
    """Round half to even with rational numbers, as if the format had no largest number."""
    exponent = max(math.frexp(value)[1] - 1, fmt.min_exponent)
    spacing = Fraction(2) ** (exponent - fmt.mantissa_bits)
    exact = round(Fraction(value) / spacing) * spacing
    return math.copysign(float(exact) if abs(exact) < 2**1024 else math.inf, value)


@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    name=st.sampled_from(["fp32", "tf32", "bf16", "fp16", "e4m3", "e9m11"]),
)
@settings(max_examples=300, deadline=None)
def test_an_fp64_number_is_rounded_once(value, name, same):
    fmt = small_float(name)
    expected = exactly_nearest(value, fmt)
    if abs(expected) > fmt.largest:
        expected = math.copysign(fmt.largest if fmt.overflow == "saturate" else math.inf, expected)
    assert same(round_to(torch.tensor(value, dtype=torch.float64), fmt), torch.tensor(expected, dtype=torch.float64))


def test_just_above_a_middle_goes_up_where_torchs_cast_rounds_twice():
    x = torch.tensor([1 + 2.0**-4 + 2.0**-40], dtype=torch.float64)
    assert round_to(x, "e4m3").item() == 1.125
    assert x.to(torch.float8_e4m3fn).item() == 1.0


@pytest.mark.parametrize("name", NARROW)
def test_nearest_is_the_nearest_of_all_numbers(name, numbers_of, points_of, either_kernel):
    fmt, numbers = small_float(name), numbers_of(small_float(name))
    x = points_of(fmt).double()
    x = x[x.abs() <= fmt.largest]
    distance = (round_to(x.float(), fmt).double() - x).abs()
    assert torch.equal(distance, (x[:, None] - numbers).abs().amin(1))


@pytest.mark.parametrize("name", NARROW)
def test_a_tie_goes_to_the_even_neighbour(name, numbers_of):
    numbers = numbers_of(small_float(name))
    numbers = numbers[numbers >= 0]
    even = torch.arange(len(numbers)) // 2 * 2 + torch.arange(len(numbers)) % 2 * 2  # of each neighbouring pair
    ties = (numbers[1:] + numbers[:-1]) / 2
    assert torch.equal(round_to(ties.float(), name).double(), numbers[even[: len(ties)].clamp(max=len(numbers) - 1)])
