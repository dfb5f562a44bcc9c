"""Sums over two arrays of fp32 in one pass, without torch: what is needed to find the multiple that fits best."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from roundoff.kernels.load import compiled_kernels

_FP32 = 1
_WIDTH = 12
"""csrc/difference.h names the results."""
_CHUNK = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySums:
    """Sums in fp64 over the elements of two arrays; NaN if not all of them are finite."""

    difference: float
    """Of the squared differences."""
    second: float
    """Of the squares of the second array."""
    product: float
    """Of the products of both."""


def sums_of_arrays(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> ArraySums:
    """Return sums over two arrays of the same size.

    >>> sums_of_arrays(np.float32([1, 2]), np.float32([3, 4]))
    ArraySums(difference=8.0, second=25.0, product=11.0)
    """
    assert first.dtype == second.dtype == np.float32
    assert first.size == second.size
    first, second = np.ascontiguousarray(first), np.ascontiguousarray(second)
    kernels = compiled_kernels()
    if kernels is None:
        return sums_of_arrays_numpy(first, second)
    row = np.empty(_WIDTH)
    kernels.difference(first.ctypes.data, _FP32, second.ctypes.data, _FP32, first.size, row.ctypes.data)
    _, _, difference, _, of_second, product, _, *num_bad = row[:9].tolist()
    if any(num_bad):
        return ArraySums(difference=math.nan, second=math.nan, product=math.nan)
    return ArraySums(difference=difference, second=of_second, product=product)


def sums_of_arrays_numpy(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> ArraySums:
    """Return the same by operations of numpy, to about 1e-12."""
    sums = np.zeros(3)
    for begin in range(0, first.size, _CHUNK):
        a, b = (x.reshape(-1)[begin : begin + _CHUNK].astype(np.float64) for x in (first, second))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return ArraySums(difference=math.nan, second=math.nan, product=math.nan)
        sums += [(a - b) @ (a - b), b @ b, a @ b]
    return ArraySums(difference=float(sums[0]), second=float(sums[1]), product=float(sums[2]))
