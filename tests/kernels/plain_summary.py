"""What a summary has to be, in plain Python, one element at a time; and tensors to try it on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from roundoff.kernels import row as columns

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
DTYPES = FLOATS + INTEGERS
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
COUNTS = slice(columns.NUM_NAN, columns.NUM_SUBNORMAL + 1)

SHAPES = [
    (), (0,), (1,), (7,), (16,), (1000,), (1023,), (1024,), (1025,), (4096,), (5000,), (2**20 + 1500,),
    (3, 0), (1, 1), (3, 5), (129, 7), (1, 1024), (3, 1024), (4, 1030), (2, 2500),
    (3, 0, 4), (4, 3, 13), (2, 9, 1024), (1, 1, 1),
    (0, 5, 6, 7), (2, 0, 3, 3), (2, 13, 7, 9), (2, 13, 8, 8), (3, 5, 9, 11), (2, 3, 32, 32), (2, 3, 32, 64),
    (2, 3, 20, 53),
    (1, 1030, 2, 2), (3, 1100, 1, 1), (40, 3, 3, 3), (2, 2000, 8, 8),
    (2, 3, 4, 5, 6), (2, 3, 2, 3, 2), (2, 3, 8, 16, 16), (1, 2, 3, 1, 2, 3),
]  # fmt: skip


def tensor_of(shape: tuple[int, ...], dtype: torch.dtype, *, seed: int = 0, special: bool = True) -> Tensor:
    """Return values of many magnitudes; floats with some NaN, infinities, zeros of both signs and subnormals."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, shape, generator=generator, dtype=torch.int64).to(dtype)
    wide = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = (wide * 2.0 ** torch.randint(-6, 6, shape, generator=generator)).to(dtype)
    if special:
        plant_specials(x, generator)
    return x


def plant_specials(x: Tensor, generator: torch.Generator) -> None:
    """Put every kind of special value somewhere into `x`, more of them the larger it is."""
    bits = WORDS[x.element_size()]
    subnormals = torch.tensor([1, 2, 3, 5], dtype=bits).view(x.dtype)
    others = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=x.dtype)
    specials = torch.cat([others, subnormals, -subnormals])
    num = min(x.numel() // 2, 40 + x.numel() // 500)
    places = torch.randperm(x.numel(), generator=generator)[:num]
    x.view(-1)[places] = specials[torch.randint(0, len(specials), (num,), generator=generator)]


@dataclass(frozen=True)
class Plain:
    """A summary and the scales that say how exactly its sums have to be met."""

    row: np.ndarray
    hash: int
    num_channels: int


def plain_summary(x: Tensor) -> Plain:
    """Summarize `x` one element at a time, with sums that are rounded once."""
    values = [float(v) for v in x.reshape(-1).tolist()]
    finite = [v for v in values if math.isfinite(v)]
    smallest_normal = torch.finfo(x.dtype).smallest_normal if x.is_floating_point() else 0
    out = np.zeros(columns.ROW_WIDTH)
    out[columns.MIN] = min(finite, default=math.nan)
    out[columns.MAX] = max(finite, default=math.nan)
    out[columns.SUM] = math.fsum(finite)
    out[columns.SUM_ABS] = math.fsum(abs(v) for v in finite)
    out[columns.SUM_SQUARES] = math.fsum(v * v for v in finite)
    out[columns.NUM_NAN] = sum(math.isnan(v) for v in values)
    out[columns.NUM_POSINF] = sum(v == math.inf for v in values)
    out[columns.NUM_NEGINF] = sum(v == -math.inf for v in values)
    out[columns.NUM_ZERO] = sum(v == 0 for v in values)
    out[columns.NUM_SUBNORMAL] = sum(0 < abs(v) < smallest_normal for v in values)
    num_channels, inner = channels_of(tuple(x.shape))
    out[columns.SKETCH :] = plain_sketch(values, num_channels, inner)
    return Plain(row=out, hash=plain_hash(x), num_channels=num_channels)


def channels_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of channels and how many elements of one stand together."""
    if len(shape) >= 4:
        return max(1, shape[1]), math.prod(shape[2:])
    if len(shape) >= 2:
        return max(1, shape[-1]), 1
    total = math.prod(shape)
    if total <= 1024:
        return max(1, total), 1
    stretch = 1024 * math.ceil(total / 2**20)
    return math.ceil(total / stretch), stretch


def plain_sketch(values: list[float], num_channels: int, inner: int) -> list[float]:
    """Return eight random-sign sums of the finite values, and their twins weighted with the channel's number."""
    buckets: list[list[float]] = [[] for _ in range(16)]
    for index, value in enumerate(values):
        if not math.isfinite(value):
            continue
        outer, rest = divmod(index, num_channels * inner)
        channel, place = divmod(rest, inner)
        if inner < 64:
            sign, bucket = sign_of(outer, rest, num_channels * inner), rest + outer
        else:
            sign, bucket = sign_of(index // inner, place, inner), channel + outer + place
        buckets[bucket % 8].append(sign * value)
        buckets[bucket % 8 + 8].append(sign * value * (channel + 1))
    return [math.fsum(bucket) for bucket in buckets]


def plain_hash(x: Tensor) -> int:
    """Return the sum of all words, weighted by their place in blocks of 1024 and by their block, modulo 2^64."""
    raw = bytes(x.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).tolist())
    size = min(4, x.element_size())
    words = [int.from_bytes(raw[i : i + size], "little") for i in range(0, len(raw), size)]
    total = 0
    for index, word in enumerate(words):
        block, place = divmod(index, 1024)
        total += word * (splitmix64(place) >> 32 | 1) * (splitmix64(block + 3 * 2**32) | 1)
    return total % 2**64


def sign_of(row: int, place: int, row_length: int) -> int:
    """Return +1 or -1: a bit of a scrambled number, of which each row has one for every 64 places."""
    word = row * math.ceil(row_length / 64) + place // 64
    return -1 if splitmix64(word + 2**62) >> place % 64 & 1 else 1


def splitmix64(state: int) -> int:
    """Return the number that Steele, Lea and Flood's SplitMix64 gives from `state`."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def hash_of(row: np.ndarray) -> int:
    """Return the hash that a row holds."""
    return int(row[columns.HASH : columns.HASH + 1].view(np.uint64)[0])


def assert_same(got: np.ndarray, expected: np.ndarray, num_channels: int) -> None:
    """Demand equal counts and extrema, and sums to 1e-12 of the sum of magnitudes."""
    np.testing.assert_array_equal(got[COUNTS], expected[COUNTS])
    np.testing.assert_array_equal(got[: columns.SUM], expected[: columns.SUM])
    scale = expected[columns.SUM_ABS]
    scales = np.full(columns.ROW_WIDTH, scale)
    scales[columns.SUM_SQUARES] = expected[columns.SUM_SQUARES]
    scales[columns.SKETCH + columns.NUM_BUCKETS :] = scale * num_channels
    for place in (columns.SUM, columns.SUM_ABS, columns.SUM_SQUARES, *range(columns.SKETCH, columns.ROW_WIDTH)):
        if got[place] != expected[place]:  # both may be infinite
            assert abs(got[place] - expected[place]) <= 1e-12 * scales[place], place
