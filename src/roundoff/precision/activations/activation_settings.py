"""What compressed activations can be told: bits per site, the size of a group, and what is too small to bother with."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from roundoff.errors import RecipeError
from roundoff.kernels.group_codes import CODE_BITS, LONGEST_GROUP

UNCOMPRESSED: Final = 32
"""As many bits mean that what a site saves is kept as it is."""

BITS: Final = (*CODE_BITS, UNCOMPRESSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSettings:
    """How the tensors that autograd saves are stored.

    `bits` is one number for the whole model (2, 4, 8, or 32 for "as it is"), or a mapping from site patterns to
    numbers. A pattern such as `blocks.*.attn` covers every site it matches and all sites inside; where several match,
    the last one counts; sites that no pattern matches are kept as they are.

    `group` values share a lowest value and a step, four bytes together: a multiple of 64 up to 1024, or None for 256
    where a channel has that many values in a row, else 64. Tensors of fewer than `min_elements` elements are kept.
    """

    bits: int | Mapping[str, int] = 4
    group: int | None = None
    min_elements: int = 1024

    def __post_init__(self) -> None:
        for bits in self.bits.values() if isinstance(self.bits, Mapping) else (self.bits,):
            if bits not in BITS:
                raise RecipeError.explain(
                    f"Activations cannot be stored in {bits} bits.",
                    why="a saved value takes 2, 4 or 8 bits; 32 keeps it as it is.",
                    fix="use bits=2, 4, 8 or 32.",
                )
        if self.group is not None and (self.group % 64 or not 64 <= self.group <= LONGEST_GROUP):
            raise RecipeError.explain(
                f"Activations cannot be stored in groups of {self.group}.",
                why=f"a group has 64, 128, 192 ... {LONGEST_GROUP} values.",
                fix="leave `group` away: 256, or 64 where channels are small, is then chosen for each tensor.",
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
        matched = [site for site in sites if _covers(pattern, site)]
        if not matched:
            raise _no_such_site(pattern, sites)
        result.update(dict.fromkeys(matched, bits))
    return result


def _covers(pattern: str, site: str) -> bool:
    """Say whether a pattern matches a site, or one that it is inside of."""
    parts = site.split(".")
    around = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return any(pattern == outer or fnmatchcase(outer, pattern) for outer in around)


def _no_such_site(pattern: str, sites: list[str]) -> RecipeError:
    near = difflib.get_close_matches(pattern, sites, n=3, cutoff=0.4) or sites[:5]
    return RecipeError.explain(
        f"No site matches '{pattern}'.",
        why=f"the model has {len(sites)} sites; near are {', '.join(near)}.",
        fix="correct the pattern; `*` stands for anything, and a site covers all that is inside it.",
    )
