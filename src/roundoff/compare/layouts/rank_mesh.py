"""How ranks are arranged: `tp=2,dp=2`, the last dimension running fastest, as in a `DeviceMesh`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.errors import UsageError
from roundoff.words import join_words


@dataclass(frozen=True, slots=True)
class RankMesh:
    """Names and sizes of the dimensions along which ranks share the work."""

    sizes: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> RankMesh:
        """Read `dp=2,tp=4`; the ranks of the last dimension are neighbours.

        >>> RankMesh.parse("dp=2,tp=4").num_ranks
        8
        """
        sizes: dict[str, int] = {}
        for part in text.replace(" ", "").split(","):
            name, _, size = part.partition("=")
            if not name.isidentifier() or not size.isdecimal() or not int(size) or name in sizes:
                raise UsageError.explain(
                    f"Invalid mesh '{text}'.", why=f"'{part}' is not NAME=SIZE.", fix="write it as --mesh dp=2,tp=2"
                )
            sizes[name] = int(size)
        return cls(sizes)

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.sizes.items())

    @property
    def num_ranks(self) -> int:
        """How many ranks it has."""
        return math.prod(self.sizes.values())

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the place of a rank.

        >>> RankMesh({"dp": 2, "tp": 4}).coordinates(6)
        {'dp': 1, 'tp': 2}
        """
        found: dict[str, int] = {}
        for name, size in reversed(list(self.sizes.items())):
            rank, found[name] = divmod(rank, size)
        return dict(reversed(found.items()))

    def varying(self, classes: Sequence[Sequence[int]]) -> list[str]:
        """Return the dimensions along which ranks of different classes lie; those of a class differ in the others.

        >>> RankMesh({"dp": 2, "tp": 2}).varying([[0, 2], [1, 3]])
        ['tp']
        """
        places = {rank: self.coordinates(rank) for ranks in classes for rank in ranks}
        number = {rank: i for i, ranks in enumerate(classes) for rank in ranks}
        return [
            name
            for name in self.sizes
            if any(
                number[a] != number[b] and all(places[a][d] == places[b][d] for d in self.sizes if d != name)
                for a, b in itertools.combinations(places, 2)
            )
        ]

    def products(self) -> dict[str, int]:
        """Return the size of every dimension, and of every product of several: `dp x tp`."""
        names = [name for name, size in self.sizes.items() if size > 1]
        several = [chosen for n in range(1, len(names) + 1) for chosen in itertools.combinations(names, n)]
        return {" x ".join(chosen): math.prod(self.sizes[name] for name in chosen) for chosen in several}


def describe_ranks(classes: Sequence[Sequence[int]], mesh: RankMesh | None) -> str:
    """Name the group over which classes of ranks differ: the mesh's dimensions, or the ranks.

    >>> describe_ranks([[0, 2], [1, 3]], RankMesh({"dp": 2, "tp": 2})), describe_ranks([[0], [1]], None)
    ('tp', 'ranks 0 and 1')
    """
    if mesh is not None and all(rank < mesh.num_ranks for ranks in classes for rank in ranks):
        names = mesh.varying(classes)
        if names:
            return " x ".join(names)
    return describe_numbers([ranks[0] for ranks in classes])


def describe_numbers(ranks: Sequence[int]) -> str:
    """Write `rank 3`, or `ranks 0 and 1`."""
    shown = join_words([str(rank) for rank in sorted(ranks)], at_most=8)
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
