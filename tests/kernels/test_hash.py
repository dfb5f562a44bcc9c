"""The hash of a summary sees every bit and its place, and is the same wherever the same tensor lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundoff.kernels import summarize
from roundoff.kernels.summaries import hash_torch
from tests.kernels.plain_summary import DTYPES, WORDS, hash_of, plain_hash, tensor_of


def by_summary(x: Tensor) -> int:
    return hash_of(summarize(x))


def by_torch(x: Tensor) -> int:
    return int(hash_torch(x)) % 2**64


both = pytest.mark.parametrize("hash_", [by_summary, by_torch])


@both
def test_hashes_of_old_runs_stay_comparable(hash_: Callable[[Tensor], int]):
    """If this fails, runs recorded before cannot be compared with new ones: do not change the numbers here."""
    assert hash_(torch.arange(3000, dtype=torch.float32)) == 0x3BF785319A8DA000
    assert hash_(torch.arange(3000, dtype=torch.float64)) == 0x9DE1C5469C9EF000
    assert hash_(torch.arange(3000, dtype=torch.int16).view(torch.bfloat16)) == 0xC91075A7948FCC62


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_flipped_bit_changes_the_hash(hash_: Callable[[Tensor], int], dtype: torch.dtype):
    x = tensor_of((2100,), dtype)
    words = x.view(WORDS[dtype.itemsize])
    seen = {hash_(x)}
    places = [0, 1, 15, 16, 511, 1023, 1024, 2048, 2099]
    bits = range(1 if dtype == torch.bool else 8 * dtype.itemsize)
    for place, bit in itertools.product(places, bits):
        flip = -(2**bit) if bit == 8 * dtype.itemsize - 1 else 2**bit
        words[place] ^= flip
        seen.add(hash_(x))
        words[place] ^= flip
    assert len(seen) == 1 + len(places) * len(bits)


@both
def test_swapping_any_two_elements_changes_the_hash(hash_: Callable[[Tensor], int]):
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    before = hash_(x)
    for a, b in [(0, 1), (0, 2), (7, 15), (16, 17), (0, 1023), (1023, 1024), (5, 5 + 1024), (100, 100 + 2048)]:
        y = x.clone()
        y[[a, b]] = x[[b, a]]
        assert hash_(y) != before, (a, b)


@both
def test_permutations_are_seen(hash_: Callable[[Tensor], int]):
    x = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(0))
    turned = [x.flip(0), x.flip(2), x.roll(1, 2), x.roll(16, 2), x.transpose(0, 1), x.transpose(1, 2)]
    variants = [x, *turned, x[:, [1, 0, *range(2, 8)]]]
    assert len({hash_(variant) for variant in variants}) == len(variants)


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_patterns_that_cheat_sums_of_alternating_signs_are_seen(hash_: Callable[[Tensor], int], dtype: torch.dtype):
    a, b = torch.tensor([1, 2], dtype=dtype)
    variants = [torch.stack(order) for order in [(a, b, b, a), (b, a, a, b), (a, b, a, b), (b, a, b, a), (a, a, b, b)]]
    assert len({hash_(variant) for variant in variants}) == len(variants)
    long = [variant.repeat(512) for variant in variants]
    assert len({hash_(variant) for variant in long}) == len(long)


@both
def test_the_halves_of_a_double_have_different_hashes(hash_: Callable[[Tensor], int]):
    x = torch.tensor([1, 2], dtype=torch.int64)
    assert len({hash_(variant.view(torch.float64)) for variant in (x, x.flip(0), x << 32)}) == 3


@both
def test_zeros_of_both_signs_and_all_nans_have_different_hashes(hash_: Callable[[Tensor], int]):
    nans = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800001], dtype=torch.int32).view(torch.float32)
    values = [torch.tensor(0.0), torch.tensor(-0.0), *nans.unbind()]
    assert len({hash_(value) for value in values}) == len(values)


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_hash_is_that_of_the_logical_order(hash_: Callable[[Tensor], int], dtype: torch.dtype):
    x = tensor_of((6, 10, 12, 14), dtype)
    for view in (x.transpose(0, 3), x[:, ::3], x[..., 5:9], x[:1].expand(4, 10, 12, 14), x[0, 0].t()):
        assert hash_(view) == hash_(view.clone(memory_format=torch.contiguous_format))
    if x.is_floating_point():
        assert hash_(x.to(memory_format=torch.channels_last)) == hash_(x)


@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=60), data=st.data())
@settings(deadline=None, max_examples=150)
def test_a_change_of_any_word_changes_the_hash(values: list[int], data: st.DataObject):
    place = data.draw(st.integers(0, len(values) - 1))
    other = list(values)
    other[place] = data.draw(st.integers(-(2**31), 2**31 - 1).filter(lambda v: v != values[place]))
    before, after = (torch.tensor(v, dtype=torch.int32).view(torch.float32) for v in (values, other))
    assert by_summary(before) == by_torch(before) == plain_hash(before)
    assert by_summary(before) != by_summary(after)


def test_random_tensors_do_not_collide():
    generator = torch.Generator().manual_seed(0)
    tensors = torch.randint(0, 4, (20_000, 6), generator=generator, dtype=torch.int8)
    different = {tuple(row) for row in tensors.tolist()}
    assert len({by_summary(row) for row in tensors}) == len(different)
