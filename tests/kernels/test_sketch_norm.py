"""How good the norm of a difference is that two sketches tell: the same for any kind of difference and of tensor."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels import summarize
from roundoff.kernels.row import difference_norms

Generator = torch.Generator
Change = Callable[[Tensor, Generator], None]


def number(low: int, high: int, generator: Generator) -> int:
    return int(torch.randint(low, high, (), generator=generator))


def part_of(x: Tensor, generator: Generator) -> Tensor:
    """Return a part of `x` between two places of its longest dimension; signs are fixed, so each trial has to move."""
    dim = int(np.argmax(x.shape))
    length = number(x.shape[dim] // 20, x.shape[dim] // 2, generator) + 1
    return x.narrow(dim, number(0, x.shape[dim] - length + 1, generator), length)


def constant(part: Tensor, generator: Generator) -> None:
    part.add_(0.01)


def proportional(part: Tensor, generator: Generator) -> None:
    part.mul_(1.001)


def in_one_row(part: Tensor, generator: Generator) -> None:
    part[number(0, len(part), generator)].add_(0.01)


def in_one_channel(part: Tensor, generator: Generator) -> None:
    part.select(1, number(0, part.shape[1], generator)).add_(0.01)


def random(part: Tensor, generator: Generator) -> None:
    part.add_(torch.randn(part.shape, generator=generator), alpha=0.01)


def matrix_of_many_rows(generator: Generator) -> tuple[int, ...]:
    return number(10_000, 100_000, generator), number(8, 24, generator)


def matrix_of_wide_rows(generator: Generator) -> tuple[int, ...]:
    return number(8, 64, generator), number(1_000, 9_000, generator)


def tall_pictures(generator: Generator) -> tuple[int, ...]:
    return number(2, 9, generator), number(1, 5, generator), number(500, 2_000, generator), number(3, 30, generator)


def small_pictures(generator: Generator) -> tuple[int, ...]:
    return number(10, 400, generator), number(2, 100, generator), 3, 3


SHAPES = [matrix_of_many_rows, matrix_of_wide_rows, tall_pictures, small_pictures]
CHANGES = [constant, proportional, in_one_row, in_one_channel, random]


def as_stored(x: Tensor) -> np.ndarray:
    return summarize(x)[columns.SKETCH :].astype(np.float32)


def ratio(x: Tensor, y: Tensor) -> float:
    """Return the estimate from the sketches, as a run keeps them, over the norm itself."""
    return float(difference_norms(as_stored(x), as_stored(y))) / float((y - x).double().norm())


@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["around zero", "around one"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_within_a_factor_of_two_in_95_of_100_trials(
    shape: Callable[[Generator], tuple[int, ...]], change: Change, offset: float
):
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(2_400_000, generator=generator) + offset
    ratios = []
    for _ in range(100):
        size = shape(generator)
        x = values[: int(np.prod(size))].view(size)
        y = x.clone()
        change(part_of(y, generator), generator)
        ratios.append(ratio(x, y))
    assert sum(0.5 < r < 2 for r in ratios) >= 95
    assert np.mean(np.square(ratios)) == pytest.approx(1, abs=0.2)  # its standard deviation is 0.05


@pytest.mark.parametrize(
    "shape", [(100_000, 16), (10_000_000,), (1, 1, 3_000, 1_000), (2_000, 50, 9), (8, 8192)], ids=str
)
def test_is_within_a_factor_of_two_for_regular_differences_of_whole_tensors(shape: tuple[int, ...]):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    assert 0.5 < ratio(x, x + 0.01) < 2
    assert 0.5 < ratio(x, x * 1.001) < 2
    assert 0.5 < ratio(x, x + 0.01 * (torch.arange(shape[-1]) % 2)) < 2


def test_sketches_of_two_formats_show_how_far_apart_they_are():
    x = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        y = 1.01 * x.to(dtype)
        assert 0.5 < ratio(x, y.float()) < 2
        assert difference_norms(as_stored(x), as_stored(y)) == pytest.approx(
            difference_norms(as_stored(x), as_stored(y.float())), rel=1e-3
        )
