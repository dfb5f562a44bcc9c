import math
import pickle

import pytest
import torch

from roundoff.errors import FormatError
from roundoff.formats import SmallFloat, format_named

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}


@pytest.mark.parametrize("name", DTYPES)
def test_its_numbers_are_those_torch_states(name):
    fmt, info = format_named(name), torch.finfo(DTYPES[name])
    assert isinstance(fmt, SmallFloat)
    assert (fmt.num_bits, fmt.largest, fmt.smallest_normal) == (info.bits, info.max, info.smallest_normal)
    assert fmt.torch_dtype == DTYPES[name]


@pytest.mark.parametrize("name", DTYPES)
def test_its_spacings_are_those_of_torchs_codes(name):
    fmt, dtype = format_named(name), DTYPES[name]
    integers = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[torch.finfo(dtype).bits]
    after_one = torch.ones(1, dtype=torch.float64).to(dtype).view(integers) + 1
    after_zero = torch.ones(1, dtype=integers)
    assert fmt.eps == after_one.view(dtype).double().item() - 1  # torch.finfo errs here for e5m2fnuz
    assert fmt.smallest_subnormal == after_zero.view(dtype).double().item()


@pytest.mark.parametrize("name", ["tf32", "e2m3", "e3m2", "e2m1", "e5m9"])
def test_a_format_torch_does_not_have_has_no_dtype(name):
    fmt = format_named(name)
    assert isinstance(fmt, SmallFloat)
    assert fmt.torch_dtype is None


def test_the_smallest_mx_element_holds_eight_magnitudes(numbers_of):
    assert numbers_of(format_named("e2m1"))[7:].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_a_format_is_a_value():
    a, b = SmallFloat.ieee(5, 10), SmallFloat.ieee(5, 10)
    assert a == b
    assert len({a, b}) == 1
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(AttributeError):
        a.largest = 1.0


def test_the_exponents_bound_the_numbers():
    fmt = SmallFloat.ieee(4, 2)
    assert (fmt.min_exponent, fmt.max_exponent) == (-6, 7)
    assert fmt.largest == 1.75 * 2**7


@pytest.mark.parametrize(("exponent_bits", "mantissa_bits"), [(0, 3), (12, 3), (4, -1), (8, 53)])
def test_widths_beyond_fp64_are_an_error(exponent_bits, mantissa_bits):
    with pytest.raises(FormatError, match="1 to 11 exponent bits and 0 to 52 mantissa bits"):
        SmallFloat.ieee(exponent_bits, mantissa_bits)


@pytest.mark.parametrize("largest", [449.0, 0.0, -1.0, math.inf, math.nan, 2.0**-30])
def test_a_largest_number_that_the_format_does_not_hold_is_an_error(largest):
    with pytest.raises(FormatError) as caught:
        SmallFloat(name="mine", exponent_bits=4, mantissa_bits=3, largest=largest, overflow="saturate")
    assert str(caught.value).startswith(f"Format 'mine' cannot have {largest!r} as its largest number.")


def test_an_unknown_overflow_rule_is_an_error():
    with pytest.raises(FormatError, match="known are saturate, infinity, nan"):
        SmallFloat(name="mine", exponent_bits=4, mantissa_bits=3, largest=448.0, overflow="wrap")


def test_a_bias_beyond_fp64_is_an_error():
    with pytest.raises(FormatError, match=r"below 2\*\*-1022"):
        SmallFloat(name="mine", exponent_bits=11, mantissa_bits=3, bias=1024, largest=1.0, overflow="nan")
