"""Finds a subset that still has a property although none of its members can be left out: prefixes first, then ddmin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import isqrt

Holds = Callable[[Sequence[str]], bool]
"""Says whether the property holds for some of the sites. It may be asked twice about a set, so it should cache."""


def minimal_subset(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return some of `sites` for which `holds` is true, and false as soon as any one of them is left out.

    It must be true for all sites and false for no site. If adding sites never makes it false (the usual case), each
    member of the answer costs about `log2(len(sites))` questions, and fewer the earlier it is in `sites`. Otherwise
    the answer is still such a set, but there may be others, and smaller ones.
    """
    found = subset_by_prefixes(sites, holds)
    smaller = next((rest for rest in _leave_each_out(found) if holds(rest)), None)
    return found if smaller is None else ddmin(smaller, holds)


def subset_by_prefixes(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return some of `sites` for which `holds` is true, asking about the first few before all others.

    The last site of the shortest prefix that suffices is needed; it is kept, and the sites before it are searched
    again for what else is needed. None can be left out if adding sites never makes the property false.
    """
    kept: list[str] = []
    rest = list(sites)  # at all times `holds(kept + rest)`
    while not holds(kept):
        length = _shortest_prefix(rest, lambda prefix: holds(kept + prefix))
        kept.append(rest[length - 1])
        rest = rest[: length - 1]
    return kept


def ddmin(sites: Sequence[str], holds: Holds) -> list[str]:
    """Return a subset of which no single site can be left out, by delta debugging.

    The sites are cut into pieces. A piece that suffices alone, or that can be left out, makes the set smaller;
    if there is none, the pieces are halved, down to single sites. The only assumption about `holds` is that it is
    true for all sites and false for no site; the price is up to about `len(sites) ** 2` questions.
    """
    found = list(sites)
    num_pieces = 2
    while len(found) > 1:
        pieces = _split(found, num_pieces)
        others = [[site for site in found if site not in piece] for piece in pieces]
        if (enough := _first_that_holds(pieces, holds)) is not None:
            found, num_pieces = enough, 2
        elif (enough := _first_that_holds(others, holds)) is not None:
            found, num_pieces = enough, max(num_pieces - 1, 2)
        elif num_pieces == len(found):
            break
        else:
            num_pieces = min(2 * num_pieces, len(found))
    return found


def _shortest_prefix(sites: list[str], holds: Callable[[list[str]], bool]) -> int:
    """Return a length at which the prefix suffices and one less does not; all sites are known to suffice.

    Asks about the first site, then about the first few, then halves: a good order saves questions, and a bad one costs
    two more than halving alone.
    """
    too_short, enough = 0, len(sites)
    lengths = [1, isqrt(len(sites))]
    while enough - too_short > 1:
        length = lengths.pop(0) if lengths else (too_short + enough) // 2
        if not too_short < length < enough:
            continue
        if holds(sites[:length]):
            enough = length
        else:
            too_short = length
    return enough


def _first_that_holds(candidates: list[list[str]], holds: Holds) -> list[str] | None:
    return next((candidate for candidate in candidates if holds(candidate)), None)


def _leave_each_out(sites: list[str]) -> Iterator[list[str]]:
    return (sites[:place] + sites[place + 1 :] for place in range(len(sites)))


def _split(sites: list[str], num_pieces: int) -> list[list[str]]:
    """Split into pieces whose lengths differ by at most one."""
    ends = [len(sites) * piece // num_pieces for piece in range(num_pieces + 1)]
    return [sites[start:end] for start, end in pairwise(ends)]
