"""Summarizes a tensor in one pass over its memory: statistics, hash, sketch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels.compiled import DTYPE_CODES, READABLE_DTYPE_CODES, check_tensors, compiled_for, compiled_kernels
from roundoff.kernels.random_numbers import PERIOD, hash_weights

_SHORT_INNER = 64
_FIRST_SIGN_WORD = 1 << 62
_WORD_DTYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def summarize(x: Tensor) -> np.ndarray:
    """Return the 27 numbers of `x`; `roundoff.kernels.row` names the columns.

    Over finite elements: min, max, sum, sum of magnitudes, sum of squares, all accumulated in fp64; then the counts of
    NaN, +inf, -inf, zero and subnormal (of the tensor's own dtype), a hash of its bits that detects permutations, and
    the sketch. A tensor without finite elements has NaN as min and max. A tensor on an accelerator is copied to the
    host first, which waits for the device; `HostCopies` waits once for many.

    >>> import torch
    >>> from roundoff.kernels import row
    >>> summarize(torch.tensor([3.0, -4.0, 0.0]))[: row.NUM_NAN].tolist()
    [-4.0, 3.0, -1.0, 7.0, 25.0]
    """
    out = np.empty(columns.ROW_WIDTH)
    if not x.is_cpu:
        x = x.detach().cpu()
    if not summarize_at(x, out.ctypes.data):
        out[:] = summarize_torch(x.detach()).numpy()
    return out


def summarize_at(x: Tensor, address: int) -> bool:
    """Write the row of `x` to `address` and return True; return False if only the torch version can read `x`."""
    kernels = compiled_kernels()
    code = READABLE_DTYPE_CODES.get(x.dtype)
    if kernels is None or code is None or not x.is_cpu or x.is_neg():
        return False
    kernels.summarize(_address_of(x), code, x.shape, x.stride(), address)
    return True


def _address_of(x: Tensor) -> int:
    """Return where the elements of a tensor are; one that stands for others, such as a DTensor, has no memory."""
    address = x.data_ptr()
    if not address and x.numel():
        raise RuntimeError(f"a {type(x).__name__} of shape {tuple(x.shape)} has no memory of its own")
    return address


def histogram(x: Tensor) -> np.ndarray:
    """Count the nonzero finite elements of `x` by power of two, in 64 buckets.

    Bucket b holds |x| in [2^(b-40), 2^(b-39)); the first extends to 0 and the last to infinity.
    """
    kernels = compiled_kernels()
    code = READABLE_DTYPE_CODES.get(x.dtype)
    if not x.is_cpu:
        x = x.detach().cpu()
    if kernels is None or code is None or x.is_neg():
        return histogram_torch(x.detach()).numpy().astype(np.uint32)
    counts = np.zeros(columns.NUM_HISTOGRAM_BUCKETS, dtype=np.uint32)
    scratch = np.empty(columns.ROW_WIDTH)
    kernels.summarize(_address_of(x), code, x.shape, x.stride(), scratch.ctypes.data, counts.ctypes.data)
    return counts


# The same in torch operations, for rare dtypes and machines without the compiled kernels: counts, extrema and hash are
# exactly equal, sums to about 1e-12 of the sum of magnitudes.


def summarize_torch(x: Tensor) -> Tensor:
    """Return the 27 numbers of `x` as float64 on its own device; column 10 holds the bits of an int64."""
    values = _values(x)
    wide = values.to(torch.float64)
    finite = torch.isfinite(wide)
    wide = torch.where(finite, wide, 0)
    flat, mask = wide.reshape(-1), finite.reshape(-1)
    sizes = _sizes(values)
    numbers = [
        torch.where(mask, flat, math.inf).amin() if flat.numel() else flat.new_tensor(math.inf),
        torch.where(mask, flat, -math.inf).amax() if flat.numel() else flat.new_tensor(-math.inf),
        flat.sum(),
        flat.abs().sum(),
        flat.square().sum(),
        torch.isnan(values).sum(),
        torch.isposinf(values).sum() if values.is_floating_point() else flat.new_zeros(()),
        torch.isneginf(values).sum() if values.is_floating_point() else flat.new_zeros(()),
        sizes.eq(0).sum(),
        _num_subnormal(x, sizes),
    ]
    low, high = numbers[0], numbers[1]
    none_finite = low > high
    numbers[0] = torch.where(none_finite, math.nan, low)
    numbers[1] = torch.where(none_finite, math.nan, high)
    head = torch.stack([n.to(wide.dtype) for n in numbers])
    return torch.cat([head, hash_torch(x).reshape(1).view(torch.float64), sketch_torch(wide)])


def hash_torch(x: Tensor) -> Tensor:
    """Return the position-weighted 64-bit hash of `x`, as an int64 scalar on its device."""
    words = _words(x)
    num_blocks = -(-words.numel() // PERIOD)
    words = torch.nn.functional.pad(words, (0, num_blocks * PERIOD - words.numel())).view(num_blocks, PERIOD)
    blocks = (words * _on_device(hash_weights, x.device, torch.int64)).sum(dim=1)
    weights = _splitmix64(torch.arange(num_blocks, device=x.device) + (3 << 32)) | 1  # one odd weight for each block
    return (blocks * weights).sum()


def sketch_torch(wide: Tensor) -> Tensor:
    """Return the eight random-sign sums of finite values, and the same sums weighted by channel."""
    channels, inner = channels_of(tuple(wide.shape))
    index = torch.arange(wide.numel(), device=wide.device)
    outer, rest = index // (channels * inner), index % (channels * inner)
    channel = rest // inner
    is_short = inner < _SHORT_INNER
    flat = wide.reshape(-1)
    signed = torch.where(_is_minus(index, channels * inner if is_short else inner), -flat, flat)
    bucket = (outer + (rest if is_short else channel + rest % inner)) % columns.NUM_BUCKETS
    sums = wide.new_zeros(2, columns.NUM_BUCKETS)
    sums[0].index_add_(0, bucket, signed)
    sums[1].index_add_(0, bucket, signed * (channel + 1))
    return sums.reshape(-1)


def _is_minus(index: Tensor, row_length: int) -> Tensor:
    """Return which elements get a minus sign: one bit each of a random number for every 64 places of a row."""
    num_rows, words_per_row = -(-index.numel() // row_length), -(-row_length // 64)
    words = _splitmix64(torch.arange(num_rows * words_per_row, device=index.device) + _FIRST_SIGN_WORD)
    row, place = index // row_length, index % row_length
    return ((words[row * words_per_row + place // 64] >> (place % 64)) & 1).bool()


def histogram_torch(x: Tensor) -> Tensor:
    """Count the nonzero finite elements by power of two: bucket b holds |x| in [2^(b-40), 2^(b-39))."""
    values = _values(x)
    wide = values.to(torch.float64).reshape(-1).abs()
    counted = torch.isfinite(wide) & _sizes(values).ne(0).reshape(-1)
    exponent = torch.frexp(torch.where(counted, wide.clamp(min=2.0**-100), 1)).exponent - 1
    bucket = (exponent + columns.BUCKET_OF_ONE).clamp(0, columns.NUM_HISTOGRAM_BUCKETS - 1).long()
    counts = torch.zeros(columns.NUM_HISTOGRAM_BUCKETS, dtype=torch.int64, device=x.device)
    return counts.index_add_(0, bucket, counted.long())


def channels_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of channels, and the number of contiguous elements of one channel.

    The channel is the second of four or more dimensions, the last of fewer; a long vector is divided into at most 1024
    stretches of a multiple of 1024 elements.
    """
    if len(shape) >= 4:
        return max(shape[1], 1), max(math.prod(shape[2:]), 1)
    if len(shape) >= 2:
        return max(shape[-1], 1), 1
    total = math.prod(shape)
    if total <= PERIOD:
        return max(total, 1), 1
    stretch = PERIOD * -(-total // PERIOD**2)
    return -(-total // stretch), stretch


def _values(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.view_as_real(x.resolve_conj())
    if x.is_floating_point() and x.element_size() == 1:
        return x.float()
    return x


def _words(x: Tensor) -> Tensor:
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    # as_strided, because a single element counts as contiguous at any stride.
    x = x.resolve_neg().contiguous().as_strided((x.numel(),), (1,))
    size = x.element_size()
    words = x.view(_WORD_DTYPES[size]) if x.dtype != torch.bool else x.view(torch.uint8)
    if size == 8:
        return words.view(torch.int32).long() & 0xFFFFFFFF
    return words.long() & ((1 << 8 * size) - 1)


def _sizes(values: Tensor) -> Tensor:
    """Return the bits of the magnitudes as integers, 0 only for 0 even if the processor flushes subnormals."""
    if not values.is_floating_point():
        return values
    words = values.resolve_neg().view(_WORD_DTYPES[values.element_size()])
    return words & torch.iinfo(words.dtype).max


def _num_subnormal(x: Tensor, sizes: Tensor) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        return sizes.new_zeros(())
    dtype = x.dtype.to_real()
    counted_as = torch.float32 if dtype.itemsize == 1 else dtype
    exponent = _exponent(torch.finfo(dtype).smallest_normal) - _exponent(torch.finfo(counted_as).smallest_normal) + 1
    smallest_normal = exponent << -_exponent(torch.finfo(counted_as).eps)
    return ((sizes > 0) & (sizes < smallest_normal)).sum()


def _exponent(power_of_two: float) -> int:
    return math.frexp(power_of_two)[1] - 1


@functools.cache
def _on_device(table: Callable[[], npt.NDArray[Any]], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a table on a device, cached there because every transfer would wait for the device."""
    return torch.from_numpy(table()).to(device=device, dtype=dtype)


def _splitmix64(x: Tensor) -> Tensor:
    """Compute `roundoff.kernels.random_numbers.splitmix64`; int64 wraps around as uint64 does."""
    x = x + _as_int64(0x9E3779B97F4A7C15)
    x = (x ^ _shift_right(x, 30)) * _as_int64(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _as_int64(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _as_int64(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    return (x >> by) & ((1 << (64 - by)) - 1)


class AbsMax(NamedTuple):
    """Two 0-dim tensors on the tensor's device, so that nothing waits for it."""

    value: Tensor
    num_nonfinite: Tensor


def absmax(x: Tensor) -> AbsMax:
    """Return the largest magnitude of the finite elements of `x`, in its dtype, and the number of the others.

    The value is 0 if there are no finite elements.

    >>> absmax(torch.tensor([1.0, -3.0, float("nan"), float("-inf")]))
    AbsMax(value=tensor(3.), num_nonfinite=tensor(2))
    """
    check_tensors(x, None)
    x = x.detach()
    kernels = compiled_for(x)
    if kernels is None:
        return absmax_torch(x)
    x = _dense(x)
    value = torch.empty((), dtype=x.dtype)
    num_nonfinite = torch.empty((), dtype=torch.int64)
    kernels.absmax(x.data_ptr(), x.numel(), DTYPE_CODES[x.dtype], value.data_ptr(), num_nonfinite.data_ptr())
    return AbsMax(value, num_nonfinite)


def absmax_torch(x: Tensor) -> AbsMax:
    """Do the same in torch operations, for accelerators and machines without the compiled kernels."""
    is_finite = torch.isfinite(x)
    magnitudes = torch.where(is_finite, x.abs(), torch.zeros((), dtype=x.dtype, device=x.device))
    value = magnitudes.amax() if x.numel() else x.new_zeros(())
    return AbsMax(value, (~is_finite).sum())


def _dense(x: Tensor) -> Tensor:
    """Return `x` if its elements fill its memory, in any order; otherwise a contiguous copy."""
    if x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride():
        return x
    return x.contiguous()
