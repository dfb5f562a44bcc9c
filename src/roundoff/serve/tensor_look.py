"""A look at one tensor: its numbers, its first values, and how many elements have which exponent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from roundoff.runs import JsonValue, TensorFile
from roundoff.runs.tensor_dtypes import TENSOR_DTYPES

CHUNK = 2**20
"""So many elements are in memory at once."""
NUM_FIRST = 64

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLook:
    """What one tensor holds, over its finite elements where it is about magnitudes."""

    dtype: str
    """As torch names it."""
    shape: tuple[int, ...]
    num_elements: int
    num_bytes: int
    min: float
    max: float
    mean: float
    l2: float
    num_nan: int
    num_posinf: int
    num_neginf: int
    num_zero: int
    first: Sequence[float]
    exponents: Mapping[int, int]
    """By e: how many finite elements other than 0 have a magnitude from 2**e to below 2**(e + 1)."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return the look as a JSON object."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "exponents"}
        return plain | {
            "shape": list(self.shape),
            "first": list(self.first),
            "exponents": {str(exponent): count for exponent, count in sorted(self.exponents.items())},
        }


def look_at(file: TensorFile, key: str) -> TensorLook:
    """Read a tensor once, a chunk at a time. Of complex numbers the magnitudes are looked at."""
    entry = file.entry(key)
    least, largest, total, squares = math.inf, -math.inf, 0.0, 0.0
    counts = dict.fromkeys(("num_nan", "num_posinf", "num_neginf", "num_zero"), 0)
    exponents: dict[int, int] = {}
    first: list[float] = []
    for chunk in chunks_of(file, key):
        values = (np.abs(chunk) if np.iscomplexobj(chunk) else chunk).astype(np.float64)
        first += values[: NUM_FIRST - len(first)].tolist()
        finite = values[np.isfinite(values)]
        if finite.size:
            least, largest = min(least, float(finite.min())), max(largest, float(finite.max()))
            total += float(finite.sum())
            with np.errstate(over="ignore"):  # the norm of numbers near the largest is infinite, and said to be
                squares += float(np.square(finite).sum())
        _count(values, counts)
        _add_exponents(finite, exponents)
    num_finite = math.prod(entry.shape) - counts["num_nan"] - counts["num_posinf"] - counts["num_neginf"]
    return TensorLook(
        dtype=TENSOR_DTYPES[entry.dtype].torch,
        shape=entry.shape,
        num_elements=math.prod(entry.shape),
        num_bytes=entry.end - entry.begin,
        min=least if num_finite else math.nan,
        max=largest if num_finite else math.nan,
        mean=total / num_finite if num_finite else math.nan,
        l2=math.sqrt(squares),
        first=first,
        exponents=exponents,
        **counts,
    )


def chunks_of(file: TensorFile, key: str) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of a tensor row by row, as numbers that numpy knows."""
    flat = file[key].reshape(-1)
    dtype = file.entry(key).dtype
    for begin in range(0, flat.size, CHUNK):
        yield decoded(flat[begin : begin + CHUNK], dtype)


def decoded(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return numbers for the bits of a dtype that numpy does not know, as float32, which holds them all."""
    numbers: npt.NDArray[Any] = bits
    if dtype == "BF16":
        numbers = (bits.astype("<u4") << 16).view("<f4")
    elif dtype.startswith("F8_"):
        numbers = _eight_bit_numbers(dtype)[bits]
    return numbers


@cache
def _eight_bit_numbers(dtype: str) -> npt.NDArray[np.float32]:
    import torch  # it knows which number each code is, and takes seconds to load

    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, TENSOR_DTYPES[dtype].torch))
    numbers: npt.NDArray[np.float32] = codes.to(torch.float32).numpy()
    return numbers


def _count(values: Floats, counts: dict[str, int]) -> None:
    counts["num_nan"] += int(np.isnan(values).sum())
    counts["num_posinf"] += int(np.isposinf(values).sum())
    counts["num_neginf"] += int(np.isneginf(values).sum())
    counts["num_zero"] += int((values == 0).sum())


def _add_exponents(finite: Floats, exponents: dict[int, int]) -> None:
    _, powers = np.frexp(finite[finite != 0])  # a mantissa from 0.5 to 1: the exponent is one too large
    found, counts = np.unique(powers - 1, return_counts=True)
    for exponent, count in zip(found.tolist(), counts.tolist(), strict=True):
        exponents[exponent] = exponents.get(exponent, 0) + count
