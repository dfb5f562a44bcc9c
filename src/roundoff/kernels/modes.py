"""The words for how a value is rounded, and for what becomes of one that is too large."""

from __future__ import annotations

from typing import Final, Literal, get_args

Rounding = Literal["nearest", "stochastic", "toward_zero", "up", "down"]
"""`nearest` sends ties to the even neighbour; `up` and `down` mean towards +infinity and -infinity."""

Overflow = Literal["saturate", "infinity", "nan"]
"""What a value beyond the largest becomes: the largest with its sign, an infinity, or NaN."""

ROUNDINGS: Final[tuple[Rounding, ...]] = get_args(Rounding)
OVERFLOWS: Final[tuple[Overflow, ...]] = get_args(Overflow)

# Places are shared with csrc/rounding.h.
ROUNDING_CODES: Final = {rounding: code for code, rounding in enumerate(ROUNDINGS)}
OVERFLOW_CODES: Final = {overflow: code for code, overflow in enumerate(OVERFLOWS)}
