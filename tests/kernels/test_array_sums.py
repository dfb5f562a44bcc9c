"""Sums over two arrays: the compiled loop and numpy agree."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest

from roundoff.kernels.array_sums import sums_of_arrays, sums_of_arrays_numpy


@pytest.mark.parametrize("size", [0, 1, 7, 1000, 2**20 + 3])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18])
def test_both_give_the_same_sums(size: int, scale: float):
    generator = np.random.default_rng(size)
    first, second = (generator.standard_normal((2, size), dtype=np.float32) * np.float32(scale)).reshape(2, size)
    found, plain = astuple(sums_of_arrays(first, second)), astuple(sums_of_arrays_numpy(first, second))
    norm = max(plain[:2], default=0.0)
    assert found == pytest.approx(plain, rel=1e-12, abs=1e-12 * norm)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_without_finite_numbers_there_are_none(bad: float):
    first, second = np.float32([1, 2]), np.float32([bad, 1])
    for found in (sums_of_arrays(first, second), sums_of_arrays(second, first), sums_of_arrays_numpy(first, second)):
        assert all(map(math.isnan, astuple(found)))


def test_parts_of_other_arrays_are_read_in_their_order():
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert sums_of_arrays(whole[:, 1:3], whole[:, 2:4]) == sums_of_arrays_numpy(
        whole[:, 1:3].copy(), whole[:, 2:4].copy()
    )
