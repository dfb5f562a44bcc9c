"""Measures the difference of two tensors, element by element, in one pass over both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.compiled import DTYPE_CODES, compiled_for

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

WIDTH = 12
"""Number of results; csrc/difference.h names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference of two tensors; sums are over the elements that are finite in both."""

    largest: float
    """The magnitude of the largest difference."""
    largest_at: int | None
    """The first row-major index where it occurs; None if nothing differs."""
    square: float
    """The sum of the squared differences."""
    squares: tuple[float, float]
    """The sum of squares of each tensor."""
    product: float
    """The sum of the products of elements."""
    num_different: int
    """The number of elements with different values."""
    num_nonfinite: tuple[int, int]
    """The number of NaN and infinities in each tensor."""
    num_unlike: int
    """The number of non-finite elements that differ: finite against not, NaN against infinity, or +inf against -inf."""
    first_unlike: int | None
    """The index of the first of them."""
    is_same_bits: bool
    """Whether dtype and bits are equal: -0 differs from 0, and a NaN equals itself."""

    @property
    def norm(self) -> float:
        """The norm of the difference."""
        return math.sqrt(self.square)

    @property
    def relative(self) -> float:
        """The norm of the difference divided by that of the first tensor; infinite if only the latter is 0."""
        if not self.square:
            return 0.0
        return math.sqrt(self.square / self.squares[0]) if self.squares[0] else math.inf

    @property
    def cosine(self) -> float:
        """The cosine of the angle between the two tensors; NaN if one of them is 0."""
        norms = math.sqrt(self.squares[0]) * math.sqrt(self.squares[1])
        return max(-1.0, min(1.0, self.product / norms)) if norms else math.nan


def difference(first: Tensor, second: Tensor) -> Difference:
    """Compare two tensors of the same shape and any dtypes, with sums in fp64.

    Integers are converted to fp64, complex numbers to pairs of real ones. Raises a `KernelError` if the shapes differ.

    >>> found = difference(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5]))
    >>> found.largest, found.largest_at, found.relative
    (0.5, 1, 0.1)
    """
    if first.shape != second.shape:
        raise KernelError.explain(
            f"Tensors of the shapes {tuple(first.shape)} and {tuple(second.shape)} cannot be compared.",
            why="the shapes must be equal.",
            fix="reshape or broadcast one of them.",
        )
    is_same_dtype = first.dtype == second.dtype
    if first.is_complex() != second.is_complex():
        first, second = first.to(torch.complex128), second.to(torch.complex128)
    first, second = (_plain(x.detach()) for x in (first, second))
    kernels = compiled_for(first) if compiled_for(second) else None
    if kernels is None:
        row = difference_torch(first, second).cpu().numpy()
    else:
        row = np.empty(WIDTH)
        codes = DTYPE_CODES[first.dtype], DTYPE_CODES[second.dtype]
        kernels.difference(first.data_ptr(), codes[0], second.data_ptr(), codes[1], first.numel(), row.ctypes.data)
    return _to_difference(row, is_same_dtype=is_same_dtype)


def _plain(x: Tensor) -> Tensor:
    """Return `x` as dense real numbers of a dtype that the kernel can read."""
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    if x.dtype not in DTYPE_CODES:
        x = x.to(torch.float32 if x.is_floating_point() else torch.float64)
    return x.resolve_neg().contiguous()


def _to_difference(row: np.ndarray, *, is_same_dtype: bool) -> Difference:
    numbers = [float(number) for number in row]
    largest, largest_at, square, of_first, of_second, product = numbers[:6]
    num_different, bad_in_first, bad_in_second, num_unlike, first_unlike, same_bits = map(int, numbers[6:])
    return Difference(
        largest=largest,
        largest_at=int(largest_at) if largest_at >= 0 else None,
        square=square,
        squares=(of_first, of_second),
        product=product,
        num_different=num_different,
        num_nonfinite=(bad_in_first, bad_in_second),
        num_unlike=num_unlike,
        first_unlike=first_unlike if first_unlike >= 0 else None,
        is_same_bits=bool(same_bits) and is_same_dtype,
    )


# The same in torch operations, for accelerators and machines without the compiled kernels: counts, the largest
# difference and its place are exactly equal, sums to about 1e-12.


def difference_torch(first: Tensor, second: Tensor) -> Tensor:
    """Return the twelve numbers of csrc/difference.h, as float64 on the device of `first`."""
    same_bits = first.dtype == second.dtype and torch.equal(_bits(first), _bits(second))
    a, b = first.reshape(-1).double(), second.reshape(-1).double()
    kinds = _kind(a), _kind(b)
    is_finite = (kinds[0] == 0) & (kinds[1] == 0)
    unlike = kinds[0] != kinds[1]
    a, b = torch.where(is_finite, a, 0), torch.where(is_finite, b, 0)
    apart = b - a
    largest, largest_at = _largest(apart.abs())
    numbers = [
        largest,
        largest_at,
        apart.square().sum(),
        a.square().sum(),
        b.square().sum(),
        (a * b).sum(),
        (apart != 0).sum() + unlike.sum(),
        (kinds[0] != 0).sum(),
        (kinds[1] != 0).sum(),
        unlike.sum(),
        _largest(unlike.double())[1],
        a.new_tensor(float(same_bits)),
    ]
    return torch.stack([number.double() for number in numbers])


def _kind(x: Tensor) -> Tensor:
    """Return 0 for finite numbers, and 1, 2, 3 for NaN, +inf and -inf."""
    return x.isnan().to(torch.int8) + 2 * x.isposinf().to(torch.int8) + 3 * x.isneginf().to(torch.int8)


def _largest(magnitudes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest magnitude and its first index; 0 and -1 if none is above 0."""
    if not magnitudes.numel():
        return magnitudes.new_zeros(()), magnitudes.new_full((), -1)
    largest = magnitudes.amax()
    at = magnitudes.argmax()
    return largest, torch.where(largest > 0, at, -1)


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(_WORDS[x.element_size()])
