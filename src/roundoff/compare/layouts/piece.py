"""Which part of a whole tensor a rank holds: found by shapes first, then by values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundoff.compare.layouts.measured_tensor import Array, MeasuredTensor, fit_arrays

_MAX_TRIED = 4096
"""Ways to cut a tensor that are tried for one part."""
_PROBED = 4096
"""Elements by which most of them are excluded."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One dimension of a part: the elements `start`, `start + step`, ...; two stretches if `second` is given."""

    dim: int
    start: int
    length: int
    step: int = 1
    second: int | None = None
    """Where the other half begins, if the part is made of two (load-balanced context parallelism)."""
    rows: tuple[int, ...] = ()
    """The places, if they follow no such order: of a sequence that was flattened together with the batch."""

    def indices(self) -> npt.NDArray[np.int64]:
        """Return the places along the dimension."""
        if self.rows:
            return np.array(self.rows)
        if self.second is not None:
            half = self.length // 2
            return np.concatenate(
                [np.arange(self.start, self.start + half), np.arange(self.second, self.second + half)]
            )
        return np.arange(self.start, self.start + self.length * self.step, self.step)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a whole tensor; without cuts, all of it."""

    cuts: tuple[Cut, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole tensor."""
        return not self.cuts

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that are divided."""
        return tuple(cut.dim for cut in self.cuts)

    def take(self, whole: Array) -> Array:
        """Return the elements of the part."""
        for cut in self.cuts:
            if cut.step == 1 and cut.second is None and not cut.rows:
                slices = [slice(None)] * whole.ndim
                slices[cut.dim] = slice(cut.start, cut.start + cut.length)
                whole = whole[tuple(slices)]
            else:
                whole = whole.take(cut.indices(), axis=cut.dim)
        return whole

    def head(self, whole: Array, num_rows: int) -> Array:
        """Return the first rows of the part, without making all of it."""
        rows = next((cut.indices()[:num_rows] for cut in self.cuts if cut.dim == 0), slice(num_rows))
        return Piece(tuple(cut for cut in self.cuts if cut.dim)).take(whole[rows])


WHOLE = Piece()


def possible_pieces(part: Sequence[int], whole: Sequence[int]) -> list[Piece]:
    """Return the ways in which a part of one shape can be cut out of a whole of another, the usual ones first."""
    if len(part) != len(whole) or any(a > b for a, b in zip(part, whole, strict=True)):
        return []
    choices = [list(_cuts(dim, a, b)) for dim, (a, b) in enumerate(zip(part, whole, strict=True)) if a != b]
    if len(choices) > 2 or any(not cuts for cuts in choices):
        return []
    return [Piece(cuts) for cuts in itertools.islice(itertools.product(*choices), _MAX_TRIED)]


def _cuts(dim: int, length: int, size: int) -> Iterator[Cut]:
    if not length:
        return
    starts = [*range(0, size - length + 1, length), *([size - length] if size % length else [])]
    yield from (Cut(dim, start, length) for start in starts)
    count, rest = divmod(size, length)
    if rest:
        return
    yield from (Cut(dim, start, length, count) for start in range(count))
    if length % 2 == 0:
        half = length // 2
        yield from (Cut(dim, i * half, length, second=size - (i + 1) * half) for i in range(count))


def matching_pieces(part: MeasuredTensor, whole: MeasuredTensor) -> list[Piece]:
    """Return every way to cut the whole so that the part results, by values; by the shape alone if there are none."""
    possible = possible_pieces(part.shape, whole.shape)
    if part.values is None or whole.values is None or not possible:
        return possible
    found = [piece for piece in possible if _fits(part.values, piece, whole.values, part.tolerance)]
    return found or _matching_rows(part.values, whole.values, part.tolerance)


def _matching_rows(part: Array, whole: Array, tolerance: float) -> list[Piece]:
    """Find each row of a matrix among those of another."""
    if part.ndim != 2 or part.shape[1] != whole.shape[1] or not np.isfinite(whole).all():
        return []
    signs = np.random.default_rng(0).standard_normal(part.shape[1])
    keys, wanted = whole @ signs, part @ signs
    order = np.argsort(keys, kind="stable")
    place = np.clip(np.searchsorted(keys[order], wanted), 1, len(keys) - 1)
    before, after = order[place - 1], order[place]
    rows = np.where(abs(keys[before] - wanted) <= abs(keys[after] - wanted), before, after)
    if not fit_arrays(part, whole[rows]).is_equal(tolerance):
        return []
    return [Piece((Cut(0, int(rows[0]), len(rows), rows=tuple(rows.tolist())),))]


def _fits(part: Array, piece: Piece, whole: Array, tolerance: float) -> bool:
    if part.size > _PROBED:
        num_rows = -(-_PROBED * len(part) // part.size)
        if not fit_arrays(part[:num_rows], piece.head(whole, num_rows)).is_equal(4 * tolerance):
            return False
    return fit_arrays(part, piece.take(whole)).is_equal(tolerance)
