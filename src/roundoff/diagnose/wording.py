"""Numbers, counts and formats as the sentences of findings write them."""

from __future__ import annotations

from roundoff.formats import SmallFloat, format_named

FORMATS = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}
"""Names of formats by dtype."""


def format_of(dtype: str) -> str:
    """Return the format's name, or the dtype where it has none."""
    return FORMATS.get(dtype, dtype)


def largest_of(format_name: str) -> float:
    """Return the largest finite number of a format in `FORMATS`."""
    return float(format_named(format_name).largest)


def eps_of(dtype: str) -> float:
    """Return the distance from 1 to the next number of a dtype in `FORMATS`."""
    fmt = format_named(FORMATS[dtype])
    assert isinstance(fmt, SmallFloat)
    return float(2.0**-fmt.mantissa_bits)


def format_short(number: float) -> str:
    """Write a number with two or three digits.

    >>> [format_short(number) for number in (1712.0, 0.25, 2.9e6, 1e-7, 353.2)]
    ['1.7e3', '0.25', '2.9e6', '1e-7', '353']
    """
    text = f"{number:.3g}" if 1 <= abs(number) < 999 else f"{number:.2g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


def format_distinct(reference: float, candidate: float) -> tuple[str, str]:
    """Write two numbers with six digits, or with as many as it takes to show that they differ.

    >>> format_distinct(2.30258, 2.30259), format_distinct(0.25, 0.25)
    (('2.30258', '2.30259'), ('0.25', '0.25'))
    >>> format_distinct(2.3025851, 2.3025853)
    ('2.3025851', '2.3025853')
    """
    for digits in range(6, 18):
        texts = f"{reference:.{digits}g}", f"{candidate:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return f"{reference:.6g}", f"{candidate:.6g}"


def format_whole(number: float) -> str:
    """Write a format's largest number.

    >>> format_whole(65504.0), format_whole(3.4028234663852886e38)
    ('65504', '3.4e38')
    """
    return f"{number:.0f}" if abs(number) < 1e6 else format_short(number)
