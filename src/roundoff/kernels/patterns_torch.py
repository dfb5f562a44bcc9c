"""Floating-point values as fp64 bit patterns in int64 tensors, without fp64 arithmetic, which some devices lack."""

from __future__ import annotations

import math

import torch
from torch import Tensor

INFINITY = 0x7FF0000000000000
QUIET_NAN = 0x7FF8000000000000
HIDDEN = 1 << 52
SIGN = -(1 << 63)

_REBIAS = (1023 - 127) << 52
_SINGLE_INFINITY = 0x7F800000


def pattern_of(value: float) -> int:
    """Return the fp64 bit pattern of one positive number."""
    fraction, exponent = math.frexp(value)
    if exponent < -1021:
        return int(math.ldexp(value, 1074))
    return ((exponent + 1021) << 52) + int(math.ldexp(fraction, 53))


def power_of_two(exponent: int) -> int:
    """Return the fp64 bit pattern of 2**`exponent`."""
    return pattern_of(math.ldexp(1.0, exponent))


def exponent_of(magnitude: Tensor) -> Tensor:
    """Return floor(log2) of magnitudes given as normal fp64 patterns; -1023 for zero."""
    return (magnitude >> 52) - 1023


def widen(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the magnitude of each element as an fp64 pattern, and whether its sign is set."""
    if x.dtype == torch.float64:
        bits = x.view(torch.int64)
        return bits & ~SIGN, bits < 0
    bits = x.float().view(torch.int32)
    a = (bits & 0x7FFFFFFF).to(torch.int64)
    normal = (a << 29) + _REBIAS
    # A subnormal is an integer multiple of 2**-149; that integer, as a float, is normal.
    count = a.clamp(max=0x7FFFFF).to(torch.float32).view(torch.int32).to(torch.int64)
    subnormal = torch.where(a == 0, 0, (count << 29) + (_REBIAS - (149 << 52)))
    wide = torch.where(a >= _SINGLE_INFINITY, normal + _REBIAS, normal)
    return torch.where(a < 0x00800000, subnormal, wide), bits < 0


def narrow(magnitude: Tensor, negative: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values with these magnitudes and signs, all of which `dtype` holds exactly."""
    if dtype == torch.float64:
        return torch.where(negative, magnitude | SIGN, magnitude).view(torch.float64)
    normal = (magnitude - _REBIAS) >> 29
    significand = (magnitude & (HIDDEN - 1)) | HIDDEN
    subnormal = significand >> (926 - (magnitude >> 52)).clamp(0, 63)
    single = torch.where(magnitude >= INFINITY, normal - (_REBIAS >> 29), normal)
    single = torch.where(magnitude < _REBIAS + HIDDEN, subnormal, single)
    bits = torch.where(negative, single - (1 << 31), single)
    return bits.to(torch.int32).view(torch.float32).to(dtype)
