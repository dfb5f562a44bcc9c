"""Number formats, and rounding a tensor to a format."""

from roundoff.formats.block import BlockFormat, ScaledBlocks
from roundoff.formats.fixed_point import FixedPoint
from roundoff.formats.format import Format
from roundoff.formats.registry import eps_of_dtype, format_named, known_formats
from roundoff.formats.round_to import RoundingEffect, effect_of, round_to
from roundoff.formats.small_float import SmallFloat
from roundoff.kernels.rounding_rules import Overflow, Rounding

__all__ = [
    "BlockFormat",
    "FixedPoint",
    "Format",
    "Overflow",
    "Rounding",
    "RoundingEffect",
    "ScaledBlocks",
    "SmallFloat",
    "effect_of",
    "eps_of_dtype",
    "format_named",
    "known_formats",
    "round_to",
]
