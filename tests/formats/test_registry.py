import math

import pytest
import torch

from roundoff.errors import FormatError
from roundoff.formats import FixedPoint, ScaledBlocks, SmallFloat, eps_of_dtype, format_named, known_formats, round_to

NAMES = [
    "fp64",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "e4m3",
    "e5m2",
    "e4m3fnuz",
    "e5m2fnuz",
    "e2m3",
    "e3m2",
    "e2m1",
    "mxfp8",
    "mxfp8-e5m2",
    "mxfp6-e2m3",
    "mxfp6-e3m2",
    "mxfp4",
    "mxint8",
    "fp8-row",
    "fp8-row-e5m2",
    "fp8-1x128",
    "fp8-128x128",
    "int8-row",
    "nvfp4",
    "nvfp4-16x16",
    "int4-group32",
    "q1.7",
    "q1.15",
]


def test_these_formats_are_known_and_found_by_name():
    assert [fmt.name for fmt in known_formats()] == NAMES
    assert [format_named(name) for name in NAMES] == list(known_formats())


@pytest.mark.parametrize("fmt", [fmt for fmt in known_formats() if isinstance(fmt, SmallFloat) and fmt.torch_dtype])
def test_the_overflow_rule_is_what_torchs_cast_does(fmt):
    beyond = torch.tensor([math.inf, -math.inf], dtype=torch.float64).to(fmt.torch_dtype).double()
    expected = {"saturate": [fmt.largest, -fmt.largest], "infinity": [math.inf, -math.inf], "nan": [math.nan] * 2}
    assert beyond.tolist() == pytest.approx(expected[fmt.overflow], nan_ok=True)
    if fmt.largest < 1e308:
        twice = torch.tensor(2 * fmt.largest, dtype=torch.float64).to(fmt.torch_dtype).double()
        assert twice.item() == pytest.approx(expected[fmt.overflow][0], nan_ok=True)


@pytest.mark.parametrize("fmt", [fmt for fmt in known_formats() if isinstance(fmt, SmallFloat) and fmt.torch_dtype])
def test_torchs_name_of_a_dtype_finds_the_same_format(fmt):
    assert format_named(str(fmt.torch_dtype).removeprefix("torch.")) is fmt


def test_any_width_can_be_named():
    fmt = format_named("e5m10")
    assert isinstance(fmt, SmallFloat)
    assert (fmt.name, fmt.largest, fmt.overflow, fmt.torch_dtype) == ("e5m10", 65504.0, "infinity", torch.float16)
    assert format_named("e11m52").largest == torch.finfo(torch.float64).max


def test_any_fixed_point_can_be_named():
    assert format_named("q3.5") == FixedPoint(num_bits=8, step=2.0**-5)
    assert format_named("q0.8").largest == 127 / 256


def test_an_unknown_name_is_an_error_with_the_known_ones_and_a_guess():
    with pytest.raises(FormatError) as caught:
        format_named("e4m3f")
    assert str(caught.value) == (
        "No format 'e4m3f'.\n"
        "  why: known formats are fp64, fp32, tf32, bf16, fp16, e4m3, e5m2, e4m3fnuz, e5m2fnuz, e2m3, e3m2, e2m1, "
        "mxfp8, mxfp8-e5m2, mxfp6-e2m3, mxfp6-e3m2, mxfp4, mxint8, fp8-row, fp8-row-e5m2, fp8-1x128, "
        "fp8-128x128, int8-row, nvfp4, nvfp4-16x16, int4-group32, q1.7, q1.15.\n"
        "  fix: did you mean 'e4m3fn'? For other formats see `roundoff docs add-a-format`"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("BF16", "did you mean 'bf16'"),
        ("mxfp6", "did you mean 'mxfp"),
        ("int8", "q1.7 has 8 bits"),
        ("q8", "q1.7 has 8 bits"),
        ("banana", "a name like e5m10 or q3.5"),
        ("", "a name like e5m10 or q3.5"),
        ("e1m3", "at least 2 exponent bits"),
        ("e5m0", "1 mantissa bit"),
        ("e12m3", "1 to 11 exponent bits"),
        ("q20.20", "1 to 24 bits"),
    ],
)
def test_every_wrong_name_gets_its_hint(name, hint):
    with pytest.raises(FormatError, match=hint):
        format_named(name)


@pytest.mark.parametrize("fmt", known_formats(), ids=lambda fmt: fmt.name)
def test_every_format_holds_the_limits_it_states(fmt):
    assert 0 < fmt.smallest_subnormal <= fmt.smallest_normal <= fmt.largest < math.inf
    held = [fmt.eps if isinstance(fmt, FixedPoint) else 1 + fmt.eps, fmt.largest]
    held += [limit for limit in (fmt.smallest_subnormal, fmt.smallest_normal) if limit >= 2.0**-1022]
    scales_are_rounded = isinstance(fmt, ScaledBlocks)
    for number in held:
        result = round_to(torch.tensor([number], dtype=torch.float64), fmt).item()
        assert result == (pytest.approx(number, rel=1e-6, abs=0) if scales_are_rounded else number)
    if fmt.name != "fp64" and not scales_are_rounded:
        beyond = round_to(torch.tensor([2 * fmt.largest], dtype=torch.float64), fmt).item()
        expected = {"saturate": fmt.largest, "infinity": math.inf, "nan": math.nan}[fmt.overflow]
        assert beyond == pytest.approx(expected, rel=0, nan_ok=True)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
)
def test_the_eps_of_a_dtype_is_torchs(dtype: str):
    assert eps_of_dtype(dtype) == torch.finfo(getattr(torch, dtype)).eps
