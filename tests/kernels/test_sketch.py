"""The sketch of a summary: differences of two of them tell how far two tensors are apart, and in which channel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels import summarize
from roundoff.kernels.summaries import summarize_torch
from tests.kernels.plain_summary import tensor_of

SHAPES = [
    (700,),
    (5000,),
    (33, 65),
    (4, 2500),
    (7, 3, 100),
    (2, 13, 7, 9),
    (3, 5, 9, 11),
    (2, 3, 32, 32),
    (2, 3, 4, 5, 6),
]


def sketch(x: Tensor) -> np.ndarray:
    return summarize(x)[columns.SKETCH :]


def as_stored(x: Tensor) -> np.ndarray:
    """Return the sketch as a run keeps it: in float32."""
    return sketch(x).astype(np.float32).astype(np.float64)


def channel_that_differs(reference: np.ndarray, candidate: np.ndarray) -> int:
    """Return the channel that the quotient of the differences of twins and buckets names."""
    difference = candidate - reference
    plain, weighted = difference[: columns.NUM_BUCKETS], difference[columns.NUM_BUCKETS :]
    return round(plain @ weighted / (plain @ plain)) - 1


def gauss(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def after_relu(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return gauss(shape, generator).relu()


def shifted(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return gauss(shape, generator) + 3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("summarize_", [summarize, lambda x: summarize_torch(x).numpy()], ids=["compiled", "torch"])
def test_the_sketch_is_linear(shape: tuple[int, ...], summarize_: Callable[[Tensor], np.ndarray]):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    of_a, of_b, of_difference = (summarize_(x)[columns.SKETCH :] for x in (a, b, a - 3 * b))
    tolerance = 1e-12 * float(a.abs().sum() + 3 * b.abs().sum()) * np.repeat([1, a.numel()], columns.NUM_BUCKETS)
    assert (abs(of_a - 3 * of_b - of_difference) <= tolerance).all()


def test_values_that_are_not_finite_count_as_zero():
    x = tensor_of((3, 1000), torch.float32)
    assert not x.isfinite().all()
    assert sketch(x).tobytes() == sketch(torch.where(x.isfinite(), x, 0)).tobytes()


@pytest.mark.parametrize("shape", [*SHAPES, (20, 1024), (2, 64, 16, 16)], ids=str)
def test_the_squared_length_of_the_eight_sums_estimates_that_of_the_tensor(shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(200):
        row = summarize(gauss(shape, generator) * torch.rand(shape, generator=generator))
        ratios.append(
            (row[columns.SKETCH : columns.SKETCH + columns.NUM_BUCKETS] ** 2).sum() / row[columns.SUM_SQUARES]
        )
    assert np.mean(ratios) == pytest.approx(1, abs=0.15)  # one alone has a standard deviation of one half
    assert 0.4 < np.std(ratios) < 0.6


def test_no_element_is_left_out_and_each_counts_once():
    for shape in ((130,), (3, 20), (2, 5, 3, 3), (1, 2, 8, 9)):
        for index in range(int(np.prod(shape))):
            x = torch.zeros(shape)
            x.view(-1)[index] = 3.0
            plain = sketch(x)[: columns.NUM_BUCKETS]
            assert (np.count_nonzero(plain), abs(plain).sum()) == (1, 3.0)


CHANNELS = [
    ((32, 1024), 1), ((100, 1024), 1), ((4, 16, 1024), 2),
    ((4, 1024, 1, 1), 1), ((2, 1024, 3, 3), 1), ((2, 1024, 7, 7), 1),  # small pictures
    ((1, 1024, 8, 8), 1), ((2, 1024, 9, 11), 1), ((1, 1024, 16, 16), 1), ((1, 1024, 4, 8, 8), 1),  # large ones
]  # fmt: skip


@pytest.mark.parametrize(("shape", "dim"), CHANNELS, ids=str)
@pytest.mark.parametrize("sketch_", [sketch, as_stored])
def test_one_channel_of_1024_that_differs_is_named_in_200_of_200_trials(
    shape: tuple[int, ...], dim: int, sketch_: Callable[[Tensor], np.ndarray]
):
    generator = torch.Generator().manual_seed(0)
    num_named = 0
    for _ in range(200):
        x, channel = gauss(shape, generator), int(torch.randint(0, 1024, (), generator=generator))
        y = x.clone()
        y.select(dim, channel).mul_(1.05)
        num_named += channel_that_differs(sketch_(x), sketch_(y)) == channel
    assert num_named == 200


@pytest.mark.parametrize("make", [after_relu, shifted])
@pytest.mark.parametrize(("shape", "dim"), [((64, 1024), 1), ((2, 1024, 8, 8), 1), ((1, 1024, 16, 16), 1)], ids=str)
def test_it_is_named_among_numbers_of_one_sign_and_rounding_noise_too(
    shape: tuple[int, ...], dim: int, make: Callable[[tuple[int, ...], torch.Generator], Tensor]
):
    generator = torch.Generator().manual_seed(0)
    num_named = 0
    for _ in range(50):
        x, channel = make(shape, generator), int(torch.randint(0, 1024, (), generator=generator))
        y = x * (1 + torch.randint(-1, 2, shape, generator=generator) * torch.finfo(torch.float32).eps)
        y.select(dim, channel).mul_(1.05)
        num_named += channel_that_differs(as_stored(x), as_stored(y)) == channel
    assert num_named == 50


def test_the_stretch_of_a_long_vector_that_differs_is_named():
    x = torch.randn(2**20, generator=torch.Generator().manual_seed(0))
    for stretch in (0, 1, 500, 1023):
        y = x.clone()
        y[1024 * stretch : 1024 * (stretch + 1)] *= 1.05
        assert channel_that_differs(as_stored(x), as_stored(y)) == stretch


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_channel_is_named_in_every_format(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x, channel = gauss((64, 1024), generator).to(dtype), int(torch.randint(0, 1024, (), generator=generator))
        y = x.clone()
        y[:, channel] *= 1.05
        assert channel_that_differs(as_stored(x), as_stored(y)) == channel


def test_a_memory_format_changes_nothing():
    x = torch.randn(2, 13, 9, 11)
    assert sketch(x).tobytes() == sketch(x.to(memory_format=torch.channels_last)).tobytes()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[: 70_000 * 16].view(70_000, 16),
        lambda x: x[: 70_000 * 16].view(70_000, 16)[:, ::3],
        lambda x: x[:2_000_000].view(2_000, 1_000).t(),
        lambda x: x,
        lambda x: x[: 3 * 2 * 700 * 300].view(2, 3, 700, 300),
        lambda x: x[: 3 * 2 * 700 * 300].view(2, 700, 300, 3).permute(0, 3, 1, 2),
        lambda x: x[: 5 * 6_000].view(5, 6_000),
    ],
    ids=["many rows", "strided", "transposed", "vector", "pictures", "channels last", "wide rows"],
)
def test_torch_takes_the_same_sketch_of_large_tensors(view: Callable[[Tensor], Tensor]):
    x = view(torch.randn(3_000_001, generator=torch.Generator().manual_seed(0)))
    first, second = sketch(x), summarize_torch(x).numpy()[columns.SKETCH :]
    scale = float(x.double().abs().sum()) * np.repeat([1, 1024], columns.NUM_BUCKETS)
    assert (abs(first - second) <= 1e-12 * scale).all()
