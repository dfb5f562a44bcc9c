"""Summaries of tensors in one pass over their memory: numbers, hash, sketch."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from roundoff.kernels import row as at
from roundoff.kernels.loading import compiled
from roundoff.kernels.summaries_torch import histogram_torch, summarize_torch


def summarize(x: Tensor) -> np.ndarray:
    """Return the 27 numbers of `x`; `roundoff.kernels.row` names the places.

    Over finite elements: min, max, sum, sum of magnitudes, sum of squares, all accumulated in fp64; then the counts of
    NaN, +inf, -inf, zero and subnormal (of the tensor's own dtype), a hash of its bits that sees permutations, and the
    sketch. An empty or wholly non-finite tensor has NaN as min and max. On an accelerator this waits for the device.

    >>> import torch
    >>> from roundoff.kernels import row
    >>> summarize(torch.tensor([3.0, -4.0, 0.0]))[: row.NUM_NAN].tolist()
    [-4.0, 3.0, -1.0, 7.0, 25.0]
    """
    out = np.empty(at.ROW_WIDTH)
    if not summarize_at(x, out.ctypes.data):
        out[:] = summarize_torch(x.detach()).cpu().numpy()
    return out


def summarize_at(x: Tensor, address: int) -> bool:
    """Write the row of `x` to `address` and return True, or False where only the torch version can read `x`."""
    kernels = compiled()
    code = at.DTYPE_CODES.get(x.dtype)
    if kernels is None or code is None or not x.is_cpu or x.is_neg():
        return False
    kernels.summarize(x.data_ptr(), code, x.shape, x.stride(), address)
    return True


def histogram(x: Tensor) -> np.ndarray:
    """Count the nonzero finite elements of `x` by power of two, in 64 buckets.

    Bucket b holds |x| in [2^(b-40), 2^(b-39)); the first and the last are open towards 0 and infinity.
    """
    kernels = compiled()
    code = at.DTYPE_CODES.get(x.dtype)
    if kernels is None or code is None or not x.is_cpu or x.is_neg():
        return histogram_torch(x.detach()).cpu().numpy().astype(np.uint32)
    counts = np.zeros(at.NUM_HISTOGRAM_BUCKETS, dtype=np.uint32)
    scratch = np.empty(at.ROW_WIDTH)
    kernels.summarize(x.data_ptr(), code, x.shape, x.stride(), scratch.ctypes.data, counts.ctypes.data)
    return counts
