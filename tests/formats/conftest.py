from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from roundoff.formats import SmallFloat

BITS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def all_numbers(fmt: SmallFloat) -> Tensor:
    """List every number of a narrow format from its fields alone, lowest first, each once."""
    magnitudes = [0.0]
    exponent = fmt.min_exponent
    magnitudes += [k * fmt.smallest_subnormal for k in range(1, 2**fmt.mantissa_bits)]
    while 2.0**exponent <= fmt.largest:
        magnitudes += [(1 + k / 2**fmt.mantissa_bits) * 2.0**exponent for k in range(2**fmt.mantissa_bits)]
        exponent += 1
    kept = torch.tensor([m for m in magnitudes if m <= fmt.largest], dtype=torch.float64)
    return torch.cat([-kept[1:].flip(0), kept])


def _same(a: Tensor, b: Tensor) -> bool:
    integers = BITS[a.dtype]
    where = ~a.isnan()
    if a.dtype != b.dtype or not torch.equal(where, ~b.isnan()):
        return False
    return torch.equal(a.view(integers)[where], b.view(integers)[where])


@pytest.fixture(scope="session")
def same() -> Callable[[Tensor, Tensor], bool]:
    """Equal bit for bit, -0 unlike 0, and every NaN like every other."""
    return _same


def _any_bits(dtype: torch.dtype, size: int, *, seed: int) -> Tensor:
    integers = BITS[dtype]
    limits = torch.iinfo(integers)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(limits.min, limits.max, (size,), dtype=integers, generator=generator).view(dtype)


@pytest.fixture(scope="session")
def any_bits() -> Callable[..., Tensor]:
    """Random bit patterns: every magnitude, subnormals, infinities and NaN included."""
    return _any_bits


@pytest.fixture(scope="session")
def numbers_of() -> Callable[[SmallFloat], Tensor]:
    return all_numbers


def critical_points(numbers: Tensor) -> Tensor:
    """Return all numbers, the middles between neighbours, and the fp32 neighbours of both, as fp32."""
    ends = torch.stack([numbers[0] * 2 - numbers[1], numbers[-1] * 2 - numbers[-2]])
    extended = torch.cat([ends[:1], numbers, ends[1:]])
    points = torch.cat([extended, (extended[1:] + extended[:-1]) / 2]).to(torch.float32)
    infinity = torch.tensor(torch.inf)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e30, -1e30, 1e-30, -1e-30, 1e-45, -1e-45])
    return torch.cat([points, points.nextafter(infinity), points.nextafter(-infinity), special])


@pytest.fixture(scope="session")
def points_of() -> Callable[[SmallFloat], Tensor]:
    return lambda fmt: critical_points(all_numbers(fmt))
