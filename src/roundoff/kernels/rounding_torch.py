"""The rounding kernels in torch operations, for accelerators and machines without the compiled kernels.

Results are bit for bit those of csrc/ (except NaN payloads), also with stochastic rounding. Nothing waits for the
device.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from roundoff.kernels.random_numbers import indices_of, random_31
from roundoff.kernels.rounding_rules import FloatGrid, Rounding, holds, within

# Values as fp64 bit patterns in int64 tensors: some devices have no fp64 arithmetic.
INFINITY = 0x7FF0000000000000
QUIET_NAN = 0x7FF8000000000000
HIDDEN = 1 << 52
SIGN = -(1 << 63)

_REBIAS = (1023 - 127) << 52
_SINGLE_INFINITY: Final = 0x7F800000


def pattern_of(value: float) -> int:
    """Return the fp64 bit pattern of one positive number."""
    fraction, exponent = math.frexp(value)
    if exponent < -1021:
        return int(math.ldexp(value, 1074))
    return ((exponent + 1021) << 52) + int(math.ldexp(fraction, 53))


def power_of_two(exponent: int) -> int:
    """Return the fp64 bit pattern of 2**`exponent`."""
    return pattern_of(math.ldexp(1.0, exponent))


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


_SINGLE_NAN: Final = 0x7FC00000
_SCALE_LIMIT = 127  # E8M0 holds 2**-127 ... 2**127


def round_float_torch(x: Tensor, grid: FloatGrid, *, rounding: Rounding, key: int) -> Tensor:
    """Round `x` to a small float; see `roundoff.kernels.rounding.round_float`."""
    if holds(grid, x.dtype):
        return x.clone()
    grid = within(grid, x.dtype)
    random = random_31(indices_of(x), key=key) if rounding == "stochastic" else None
    if can_be_quick(grid, x.dtype):
        return round_quickly(x, grid, rounding=rounding, random=random)
    magnitude, negative = widen(x)
    rounded = _round_magnitude(
        magnitude,
        negative,
        mantissa_bits=grid.mantissa_bits,
        min_exponent=grid.min_exponent,
        smallest=power_of_two(grid.min_exponent - grid.mantissa_bits),
        rounding=rounding,
        random=random,
    )
    largest = pattern_of(grid.largest)
    over = {"saturate": largest, "infinity": INFINITY, "nan": QUIET_NAN}[grid.overflow]
    # A finite number that is rounded towards zero never overflows.
    over_plus = largest if rounding in ("toward_zero", "down") else over
    over_minus = largest if rounding in ("toward_zero", "up") else over
    beyond = over_plus if over_plus == over_minus else torch.where(negative, over_minus, over_plus)
    beyond = torch.where(magnitude == INFINITY, over, beyond)
    rounded = torch.where(rounded > largest, beyond, rounded)
    rounded = torch.where(magnitude > INFINITY, magnitude, rounded)
    if not grid.signed_zero:
        negative = negative & (rounded != 0)
    return narrow(rounded, negative, x.dtype)


def round_blocks_torch(
    x: Tensor, grid: FloatGrid, *, block_size: int, max_exponent: int, rounding: Rounding, key: int
) -> Tensor:
    """Round blocks of the last axis to a shared scale; see `roundoff.kernels.rounding.round_blocks`."""
    length = x.shape[-1]
    blocked = _in_blocks(x, block_size)
    random = None
    if rounding == "stochastic":
        random = random_31(_in_blocks(indices_of(x), block_size), key=key)
    magnitude, negative = widen(blocked)
    finite = torch.where(magnitude < INFINITY, magnitude, 0)
    exponent = (finite.amax(-1, keepdim=True) >> 52) - 1023  # floor(log2) of a normal number; -1023 for zero
    scale = (exponent - max_exponent).clamp(-_SCALE_LIMIT, _SCALE_LIMIT)
    rounded = _round_magnitude(
        magnitude,
        negative,
        mantissa_bits=grid.mantissa_bits,
        min_exponent=scale + grid.min_exponent,
        smallest=(scale + (grid.min_exponent - grid.mantissa_bits + 1023)) << 52,
        rounding=rounding,
        random=random,
    )
    largest = (scale << 52) + pattern_of(grid.largest)
    rounded = torch.minimum(rounded, largest)
    rounded = torch.where(magnitude >= INFINITY, magnitude, rounded)
    if not grid.signed_zero:
        negative = negative & (rounded != 0)
    return narrow(rounded, negative, x.dtype).flatten(-2)[..., :length]


def round_fixed_torch(
    x: Tensor, *, step: float | Tensor, lowest: int, highest: int, rounding: Rounding, key: int
) -> Tensor:
    """Round `x` to whole multiples of `step`; see `roundoff.kernels.rounding.round_fixed`."""
    wide = x if x.dtype == torch.float64 else x.float()
    # A tensor, because some devices multiply by the inverse of a Python number instead of dividing.
    step = torch.as_tensor(step).to(wide) if isinstance(step, Tensor) else wide.new_full((), step)
    negative = torch.signbit(wide)
    limit = torch.where(negative, float(-lowest), float(highest)).to(wide.dtype)
    count = torch.minimum(wide.abs() / step, limit)
    whole = torch.minimum(_whole_number(wide, count, negative, rounding, key), limit)
    rounded = torch.where(whole > 0, torch.where(negative, -whole, whole) * step, 0.0)
    return torch.where(torch.isfinite(wide), rounded, wide).to(x.dtype)


def _whole_number(wide: Tensor, count: Tensor, negative: Tensor, rounding: Rounding, key: int) -> Tensor:
    if rounding == "nearest":
        return count.round()
    whole = count.floor()
    if rounding == "stochastic":
        part = torch.nan_to_num((count - whole) * 2**31).to(torch.int64)
        return whole + (part + random_31(indices_of(wide), key=key) >> 31)
    if rounding == "toward_zero":
        return whole
    is_away = negative if rounding == "down" else ~negative
    magnitude, _ = widen(wide)
    is_between = (count > whole) | ((count == 0) & (magnitude != 0))
    return torch.where(is_away & is_between, whole + 1, whole)


def _round_magnitude(
    magnitude: Tensor,
    negative: Tensor,
    *,
    mantissa_bits: int,
    min_exponent: int | Tensor,
    smallest: int | Tensor,
    rounding: Rounding,
    random: Tensor | None,
) -> Tensor:
    """Round fp64 patterns as if the format had no largest number; csrc/small_float.h explains the steps."""
    exponent = magnitude >> 52
    missing = (min_exponent + 1023) - exponent.clamp(min=1)
    cut = missing.clamp(min=0) + (52 - mantissa_bits)
    is_small = cut > 52
    within_52 = torch.where(is_small, 0, cut)
    below = torch.where(is_small, -1, (torch.ones_like(cut) << within_52) - 1)
    significand = (magnitude & (HIDDEN - 1)) | torch.where(exponent > 0, HIDDEN, 0)
    low = significand & below
    if rounding == "nearest":
        is_odd = torch.where(is_small, 0, (significand >> within_52) & 1)
        carry = (low << 1) > (torch.ones_like(cut) << cut.clamp(max=60)) - is_odd
    elif rounding == "stochastic":
        assert random is not None
        down = cut - 31
        part = torch.where(down >= 0, low >> down.clamp(0, 63), low << (-down).clamp(0, 63))
        carry = (part + random) >> 31 != 0
    elif rounding == "toward_zero":
        carry = torch.zeros_like(negative)
    else:
        carry = (low != 0) & (negative if rounding == "down" else ~negative)
    small = torch.where(carry, smallest, 0)
    return torch.where(is_small, small, (magnitude & ~below) + (carry.to(torch.int64) << within_52))


def _in_blocks(x: Tensor, block_size: int) -> Tensor:
    """Split the last axis into blocks; the last block is padded with zeros."""
    missing = -x.shape[-1] % block_size
    padded = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return padded.reshape(*x.shape[:-1], -1, block_size)


# Common small floats in 32-bit operations, several times cheaper than the general case, with the same bits as `Quick`
# in csrc/small_float.h.


def can_be_quick(grid: FloatGrid, dtype: torch.dtype) -> bool:
    """Whether `round_quickly` can be used: not for fp64, nor for grids with numbers near the smallest of fp32."""
    last = grid.min_exponent - grid.mantissa_bits
    if dtype == torch.float64 or not 1 <= grid.mantissa_bits <= 22 or grid.largest < 2.0**-126:
        return False
    return grid.min_exponent == -126 or (grid.min_exponent > -126 and -90 <= last <= 100)


def round_quickly(x: Tensor, grid: FloatGrid, *, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round `x` to `grid`, whose largest number `x.dtype` holds; `random` has 31 bits for each element, or is None."""
    bits = x.float().view(torch.int32)
    a = bits & 0x7FFFFFFF
    negative = bits < 0
    rounded = _normal(a, negative, grid.mantissa_bits, rounding, random)
    if grid.min_exponent > -126:
        is_subnormal = a < (grid.min_exponent + 127) << 23
        small = torch.where(is_subnormal, a, 0)
        last = grid.min_exponent - grid.mantissa_bits
        rounded = torch.where(is_subnormal, _subnormal(small, negative, last, rounding, random), rounded)
    largest = _single_pattern_of(grid.largest)
    rounded = torch.where(rounded > largest, _beyond(a, negative, largest, grid, rounding), rounded)
    rounded = torch.where(a > _SINGLE_INFINITY, a, rounded)
    if not grid.signed_zero:
        negative = negative & (rounded != 0)
    return torch.where(negative, rounded | -(1 << 31), rounded).view(torch.float32).to(x.dtype)


def _normal(a: Tensor, negative: Tensor, mantissa_bits: int, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round the last bits of the patterns away."""
    shift = 23 - mantissa_bits
    low = (1 << shift) - 1
    if rounding == "nearest":
        a = a + ((a >> shift) & 1) + (low >> 1)
    elif rounding == "stochastic":
        assert random is not None
        a = a + (random >> (31 - shift)).to(torch.int32)
    elif rounding != "toward_zero":
        a = torch.where(_is_away(negative, rounding), a + low, a)
    return a & ~low


def _subnormal(small: Tensor, negative: Tensor, last: int, rounding: Rounding, random: Tensor | None) -> Tensor:
    """Round to whole multiples of 2**`last`."""
    values = small.view(torch.float32)
    if rounding == "nearest":
        magic = math.ldexp(1.0, last + 23)  # adding it rounds to a multiple of 2**last
        return ((values + magic) - magic).view(torch.int32)
    count = values * math.ldexp(1.0, -last)
    whole = count.floor()
    if rounding == "stochastic":
        assert random is not None
        carry = (((count - whole) * 2**31).to(torch.int64) + random) >> 31 != 0
        whole = torch.where(carry, whole + 1, whole)
    elif rounding != "toward_zero":
        # A count that underflowed to 0 still counts as more than 0.
        carry = ((count > whole) | ((count == 0) & (small != 0))) & _is_away(negative, rounding)
        whole = torch.where(carry, whole + 1, whole)
    return (whole * math.ldexp(1.0, last)).view(torch.int32)


def _beyond(a: Tensor, negative: Tensor, largest: int, grid: FloatGrid, rounding: Rounding) -> Tensor:
    """Return what replaces numbers beyond the largest; those that are rounded towards zero become the largest."""
    over = {"saturate": largest, "infinity": _SINGLE_INFINITY, "nan": _SINGLE_NAN}[grid.overflow]
    if rounding in ("nearest", "stochastic"):
        return a.new_full((), over)
    stays = torch.ones_like(negative) if rounding == "toward_zero" else ~_is_away(negative, rounding)
    return torch.where(stays & (a != _SINGLE_INFINITY), a.new_full((), largest), a.new_full((), over))


def _is_away(negative: Tensor, rounding: Rounding) -> Tensor:
    """Where rounding up or down makes the magnitude larger."""
    return ~negative if rounding == "up" else negative


def _single_pattern_of(value: float) -> int:
    """Return the fp32 bit pattern of one positive normal number that fp32 holds."""
    fraction, exponent = math.frexp(value)
    return ((exponent + 125) << 23) + int(math.ldexp(fraction, 24))
