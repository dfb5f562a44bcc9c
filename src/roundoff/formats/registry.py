"""Formats by name."""

from __future__ import annotations

import difflib
import re
from typing import Final

from roundoff.errors import FormatError
from roundoff.formats.block import BlockFormat, ScaledBlocks
from roundoff.formats.fixed_point import FixedPoint
from roundoff.formats.format import Format
from roundoff.formats.small_float import SmallFloat

# Overflow is that of torch 2.13's casts on the CPU; tests/formats/test_registry.py checks this.
_E4M3: Final = SmallFloat(name="e4m3", exponent_bits=4, mantissa_bits=3, largest=448.0, overflow="saturate")
_E5M2: Final = SmallFloat(name="e5m2", exponent_bits=5, mantissa_bits=2, largest=57344.0, overflow="infinity")
_E2M3: Final = SmallFloat(name="e2m3", exponent_bits=2, mantissa_bits=3, largest=7.5, overflow="saturate")
_E3M2: Final = SmallFloat(name="e3m2", exponent_bits=3, mantissa_bits=2, largest=28.0, overflow="saturate")
_E2M1: Final = SmallFloat(name="e2m1", exponent_bits=2, mantissa_bits=1, largest=6.0, overflow="saturate")
# Integers as floats of one exponent, evenly spaced: multiples of 2**-6 in MXINT8, whole numbers elsewhere.
_INT8_FRACTION: Final = SmallFloat(
    name="int8", exponent_bits=1, mantissa_bits=6, bias=1, largest=127 / 64, overflow="saturate", signed_zero=False
)
_INT8: Final = SmallFloat(
    name="int8", exponent_bits=1, mantissa_bits=6, bias=-5, largest=127.0, overflow="saturate", signed_zero=False
)
_INT4: Final = SmallFloat(
    name="int4", exponent_bits=1, mantissa_bits=2, bias=-1, largest=7.0, overflow="saturate", signed_zero=False
)

_KNOWN: Final[tuple[Format, ...]] = (
    SmallFloat.ieee(11, 52, name="fp64"),
    SmallFloat.ieee(8, 23, name="fp32"),
    SmallFloat.ieee(8, 10, name="tf32"),
    SmallFloat.ieee(8, 7, name="bf16"),
    SmallFloat.ieee(5, 10, name="fp16"),
    _E4M3,
    _E5M2,
    SmallFloat(
        name="e4m3fnuz", exponent_bits=4, mantissa_bits=3, bias=8, largest=240.0, overflow="nan", signed_zero=False
    ),
    SmallFloat(
        name="e5m2fnuz", exponent_bits=5, mantissa_bits=2, bias=16, largest=57344.0, overflow="nan", signed_zero=False
    ),
    _E2M3,
    _E3M2,
    _E2M1,
    BlockFormat(name="mxfp8", element=_E4M3),
    BlockFormat(name="mxfp8-e5m2", element=_E5M2),
    BlockFormat(name="mxfp6-e2m3", element=_E2M3),
    BlockFormat(name="mxfp6-e3m2", element=_E3M2),
    BlockFormat(name="mxfp4", element=_E2M1),
    BlockFormat(name="mxint8", element=_INT8_FRACTION),
    ScaledBlocks(name="fp8-row", element=_E4M3, block_size=0),
    ScaledBlocks(name="fp8-row-e5m2", element=_E5M2, block_size=0),
    ScaledBlocks(name="fp8-1x128", element=_E4M3, block_size=128, scale="power_of_two"),
    ScaledBlocks(name="fp8-128x128", element=_E4M3, block_size=128, block_rows=128, scale="power_of_two"),
    ScaledBlocks(name="int8-row", element=_INT8, block_size=0),
    ScaledBlocks(name="nvfp4", element=_E2M1, block_size=16, scale="e4m3"),
    ScaledBlocks(name="nvfp4-16x16", element=_E2M1, block_size=16, block_rows=16, scale="e4m3"),
    ScaledBlocks(name="int4-group32", element=_INT4, block_size=32),
    FixedPoint(num_bits=8, step=2.0**-7),
    FixedPoint(num_bits=16, step=2.0**-15),
)

_BY_NAME: Final = {fmt.name: fmt for fmt in _KNOWN}

_OTHER_NAMES: Final = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "e4m3fn": "e4m3",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz",
    "mxfp8-e4m3": "mxfp8",
    "mxfp4-e2m1": "mxfp4",
}


_REAL_PARTS: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def known_formats() -> tuple[Format, ...]:
    """Return all named formats, the widest first."""
    return _KNOWN


def format_named(name: str) -> Format:
    """Return the format with this name.

    Besides the names of `known_formats` and of torch's dtypes, `e5m10` means an IEEE 754 float (with infinities and
    subnormals) with 5 exponent and 10 mantissa bits, and `q3.5` means two's complement fixed point with 3 integer bits,
    including the sign, and 5 fractional bits.

    >>> format_named("e4m3").largest
    448.0
    >>> format_named("q3.5").largest
    3.96875

    Raises:
        FormatError: no format has that name; the message lists the known ones.
    """
    if known := _BY_NAME.get(_OTHER_NAMES.get(name, name)):
        return known
    if match := re.fullmatch(r"e(\d{1,3})m(\d{1,3})", name):
        exponent_bits, mantissa_bits = int(match[1]), int(match[2])
        if exponent_bits < 2 or mantissa_bits < 1:
            raise FormatError.explain(
                f"No format '{name}'.",
                why="with infinities, a float needs at least 2 exponent bits and 1 mantissa bit.",
                fix="define it with its largest number: roundoff docs add-a-format",
            )
        return SmallFloat.ieee(exponent_bits, mantissa_bits)
    if match := re.fullmatch(r"q(\d{1,3})\.(\d{1,3})", name):
        integer_bits, fraction_bits = int(match[1]), int(match[2])
        return FixedPoint(num_bits=integer_bits + fraction_bits, step=2.0**-fraction_bits)
    raise _unknown(name)


def eps_of_dtype(dtype: str) -> float:
    """Return the distance from 1 to the next number of a dtype, by torch's name; 0 if it holds whole numbers.

    >>> eps_of_dtype("bfloat16"), eps_of_dtype("complex64") == eps_of_dtype("float32"), eps_of_dtype("int64")
    (0.0078125, True, 0.0)
    """
    if dtype == "float8_e8m0fnu":  # powers of two, which no format here is made of
        return 1.0
    found = _BY_NAME.get(_OTHER_NAMES.get(_REAL_PARTS.get(dtype, dtype), ""))
    return found.eps if found else 0.0


def _unknown(name: str) -> FormatError:
    if re.fullmatch(r"(?:q|int|fixed)\d+", name):
        fix = "fixed point is written with its point: q1.7 has 8 bits, from -1 to 1."
    elif close := difflib.get_close_matches(name.lower(), [*_BY_NAME, *_OTHER_NAMES], n=1, cutoff=0.5):
        fix = f"did you mean '{close[0]}'? For other formats see `roundoff docs add-a-format`"
    else:
        fix = "use one of them, or a name like e5m10 or q3.5; see `roundoff docs add-a-format`"
    return FormatError.explain(f"No format '{name}'.", why=f"known formats are {', '.join(_BY_NAME)}.", fix=fix)
