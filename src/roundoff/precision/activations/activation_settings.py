"""Settings of compressed activations: bits per site, the size of a group, and the smallest tensor to compress."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from roundoff.errors import RecipeError
from roundoff.kernels.group_codes import CODE_BITS, LONGEST_GROUP
from roundoff.precision.recipe.fixed_point_settings import covers

UNCOMPRESSED: Final = 32
"""This number of bits means no compression."""

BITS: Final = (*CODE_BITS, UNCOMPRESSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSettings:
    """How the tensors that autograd saves are stored.

    `bits` is one number for the whole model (2, 4, 8, or 32 for no compression), or a mapping from site patterns to
    numbers. A pattern such as `blocks.*.attn` matches sites and everything inside them; the last match wins, and sites
    without a match are not compressed.

    `group` values share a lowest value and a step of four bytes together. It is a multiple of 64 up to 1024; None means
    256 where a channel has that many contiguous values, otherwise 64. Tensors of fewer than `min_elements` elements are
    not compressed.
    """

    bits: int | Mapping[str, int] = 4
    group: int | None = None
    min_elements: int = 1024

    def __post_init__(self) -> None:
        for bits in self.bits.values() if isinstance(self.bits, Mapping) else (self.bits,):
            if bits not in BITS:
                raise RecipeError.explain(
                    f"Activations cannot be stored in {bits} bits.",
                    why="a saved value takes 2, 4 or 8 bits; 32 means no compression.",
                    fix="use bits=2, 4, 8 or 32.",
                )
        if self.group is not None and (self.group % 64 or not 64 <= self.group <= LONGEST_GROUP):
            raise RecipeError.explain(
                f"Activations cannot be stored in groups of {self.group}.",
                why=f"a group has 64, 128, 192 ... {LONGEST_GROUP} values.",
                fix="omit `group`: the default is 256, or 64 where channels are small.",
            )


def bits_by_site(settings: ActivationSettings, sites: Iterable[str]) -> dict[str, int]:
    """Return the bits of every site.

    Raises:
        RecipeError: a pattern matches no site.
    """
    sites = list(sites)
    if not isinstance(settings.bits, Mapping):
        return dict.fromkeys(sites, settings.bits)
    result = dict.fromkeys(sites, UNCOMPRESSED)
    for pattern, bits in settings.bits.items():
        matched = [site for site in sites if covers(pattern, site)]
        if not matched:
            raise _no_such_site(pattern, sites)
        result.update(dict.fromkeys(matched, bits))
    return result


def _no_such_site(pattern: str, sites: list[str]) -> RecipeError:
    near = difflib.get_close_matches(pattern, sites, n=3, cutoff=0.4) or sites[:5]
    return RecipeError.explain(
        f"No site matches '{pattern}'.",
        why=f"the model has {len(sites)} sites; the closest are {', '.join(near)}.",
        fix="correct the pattern; `*` matches anything, and a site includes everything inside it.",
    )
