"""What the sketches of two tensors tell: how far apart the tensors are, and in which channel.

A sketch is the last 16 numbers of a summary, or the same as float32 in a run: eight sums of the elements with random
signs, then the same sums with each element weighted by the number of its channel, counted from 1. Signs depend on the
place in the tensor alone, never on dtype or device, so that any two tensors of one shape can be compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from roundoff.kernels.row import NUM_BUCKETS

Array = npt.NDArray[np.float64]


def difference_norms(a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
    """Estimate the norm of the difference of tensors from their sketches, N x 16 each; N norms.

    The square of the estimate is right on average, with a standard deviation of half of it: 98 of 100 estimates are
    within a factor of two of the norm, 9 of 10 between 0.58 and 1.4 of it. Few differing elements are told better, a
    single one exactly. Sketches kept in float32 do not see differences below about 1e-7 of the tensor's own norm.
    Elements that are not finite count as 0.
    """
    plain, _ = _differences(a, b)
    return np.asarray(np.sqrt(np.square(plain).sum(axis=-1)))


def differing_channels(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Array, Array]:
    """Name the channel in which tensors differ most likely, and how sure that is; N of each from sketches of N x 16.

    Channels count from 0, and are NaN where the sketches are equal. The certainty is the share of the squared
    difference that lies in the channel at least, as far as the sketch can tell: 1 if no other channel differs, 0 if
    many do, or if one differs amid too much noise. The channel is the second dimension of tensors with four and more,
    the last of those with fewer, and of a vector of more than 1024 elements one of at most 1024 equal stretches.
    """
    plain, weighted = _differences(a, b)
    squared = np.square(plain).sum(axis=-1)
    differs = squared > 0
    divisor = np.where(differs, squared, 1)
    number = np.round((plain * weighted).sum(axis=-1) / divisor)
    # Another channel's part of the difference is in the rest with the distance of the two channels as its weight.
    rest = np.square(weighted - number[..., None] * plain).sum(axis=-1) / divisor
    certainty = np.where(differs, np.clip(1 - rest, 0, 1), 0)
    return np.where(differs, number - 1, np.nan), certainty


def _differences(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Array, Array]:
    """Return the differences of the plain sums and of the weighted ones."""
    difference = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    return difference[..., :NUM_BUCKETS], difference[..., NUM_BUCKETS:]
