"""The difference of two tensors, against plain Python, element by element."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from roundoff.errors import KernelError
from roundoff.kernels.compiled import DTYPE_CODES, compiled_kernels
from roundoff.kernels.differences import Difference, _to_difference, difference, difference_torch

DTYPES = list(DTYPE_CODES)
SIZES = [0, 1, 15, 16, 17, 1000, 1023, 1024, 1025, 5000]


def in_torch(first: Tensor, second: Tensor) -> Difference:
    return _to_difference(difference_torch(first, second).numpy(), is_same_dtype=first.dtype == second.dtype)


BOTH = pytest.mark.parametrize("difference_", [difference, in_torch], ids=["compiled", "torch"])
Measure = Callable[[Tensor, Tensor], Difference]


def kind(x: float) -> str:
    return "finite" if math.isfinite(x) else str(x)


def bits(x: Tensor) -> list[int]:
    return x.view(torch.uint8).tolist() if x.numel() else []


def plain(first: Tensor, second: Tensor) -> Difference:
    """Measure one element at a time, with sums that are rounded once."""
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    finite = [(i, x, y) for i, (x, y) in enumerate(pairs) if math.isfinite(x) and math.isfinite(y)]
    unlike = [i for i, (x, y) in enumerate(pairs) if kind(x) != kind(y)]
    largest = max((abs(y - x) for _, x, y in finite), default=0.0)
    return Difference(
        largest=largest,
        largest_at=next((i for i, x, y in finite if abs(y - x) == largest and largest), None),
        square=math.fsum((y - x) ** 2 for _, x, y in finite),
        squares=(math.fsum(x * x for _, x, _ in finite), math.fsum(y * y for _, _, y in finite)),
        product=math.fsum(x * y for _, x, y in finite),
        num_different=sum(x != y for _, x, y in finite) + len(unlike),
        num_nonfinite=(sum(not math.isfinite(x) for x, _ in pairs), sum(not math.isfinite(y) for _, y in pairs)),
        num_unlike=len(unlike),
        first_unlike=unlike[0] if unlike else None,
        is_same_bits=first.dtype == second.dtype and bits(first) == bits(second),
    )


def assert_same(got: Difference, expected: Difference) -> None:
    size = max(expected.squares)
    sums = dict(square=expected.square, squares=expected.squares, product=expected.product)
    assert replace(got, **sums) == expected
    assert got.square == pytest.approx(expected.square, rel=1e-12)
    assert got.squares == pytest.approx(expected.squares, rel=1e-12)
    assert got.product == pytest.approx(expected.product, rel=1e-12, abs=1e-12 * size)


def tensor(size: int, dtype: torch.dtype, *, seed: int, special: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
    if special and size > 4:
        values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=dtype)
        places = torch.randint(0, size, (size // 5,), generator=generator)
        x[places] = values[torch.randint(0, 5, (size // 5,), generator=generator)]
    return x


@BOTH
@pytest.mark.parametrize("special", [False, True], ids=["finite", "with NaN and infinities"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", DTYPES, ids=str)
@pytest.mark.parametrize("second", DTYPES, ids=str)
def test_is_what_plain_python_finds(
    first: torch.dtype, second: torch.dtype, size: int, special: bool, difference_: Measure
):
    a, b = tensor(size, first, seed=0, special=special), tensor(size, second, seed=1, special=special)
    assert_same(difference_(a, b), plain(a, b))


@BOTH
def test_equal_tensors_have_the_same_bits_and_no_difference(difference_: Measure):
    x = tensor(3000, torch.float32, seed=0, special=True)
    found = difference_(x, x.clone())
    assert (found.is_same_bits, found.num_different, found.largest, found.largest_at) == (True, 0, 0.0, None)
    assert (found.relative, found.num_unlike) == (0.0, 0)
    assert found.cosine == pytest.approx(1)


@BOTH
def test_signs_of_zero_and_dtypes_are_bits_but_no_difference(difference_: Measure):
    zeros = torch.zeros(5)
    assert not difference_(zeros, -zeros).is_same_bits
    assert not difference_(zeros, zeros.double()).is_same_bits
    assert difference_(zeros, -zeros).num_different == 0


@BOTH
@pytest.mark.parametrize("place", [0, 1023, 1024, 99_999])
def test_the_largest_difference_is_found_at_any_place(place: int, difference_: Measure):
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    y = x * (1 + 1e-6)
    y[place] += 1
    assert difference_(x, y).largest_at == place


@BOTH
def test_the_first_of_several_largest_ones_is_reported(difference_: Measure):
    x, y = torch.zeros(5000), torch.zeros(5000)
    y[[1500, 1600, 4000]] = torch.tensor([2.0, -2.0, 2.0])
    assert difference_(x, y).largest_at == 1500


def test_numbers_whose_squares_overflow_are_still_compared():
    found = difference(torch.full((3,), 1e200, dtype=torch.float64), torch.full((3,), 2e200, dtype=torch.float64))
    assert (found.largest, found.num_nonfinite) == (1e200, (0, 0))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn], ids=str)
def test_other_dtypes_are_measured_too(dtype: torch.dtype):
    x = torch.tensor([0, 1, 1, 0]).to(dtype)
    y = torch.tensor([0, 1, 0, 0]).to(dtype)
    found = difference(x, y)
    assert (found.largest, found.largest_at, found.num_different, found.is_same_bits) == (1.0, 2, 1, False)
    assert difference(x, x).is_same_bits


def test_complex_numbers_are_pairs():
    found = difference(torch.tensor([1 + 1j, 2 + 2j]), torch.tensor([1 + 1j, 2 + 5j]))
    assert (found.largest, found.largest_at, found.relative) == (3.0, 3, 3 / math.sqrt(10))


def test_a_real_tensor_is_measured_against_a_complex_one():
    found = difference(torch.ones(3), torch.tensor([1, 1, 1 + 2j]))
    assert (found.largest, found.num_different, found.is_same_bits) == (2.0, 1, False)


def test_strides_do_not_matter():
    x, y = torch.randn(30, 40), torch.randn(40, 30)
    assert difference(x, y.t()) == difference(x, y.t().contiguous())


def test_tensors_of_different_shapes_are_an_error():
    with pytest.raises(KernelError, match=r"\(2, 3\) and \(3, 2\)"):
        difference(torch.zeros(2, 3), torch.zeros(3, 2))


def test_relative_and_cosine_of_nothing():
    zero, one = torch.zeros(3), torch.ones(3)
    assert difference(zero, one).relative == math.inf
    assert math.isnan(difference(zero, one).cosine)
    assert difference(torch.zeros(0), torch.zeros(0)).relative == 0.0
    assert np.isclose(difference(one, -one).cosine, -1)


DIFFERENCE_OF_FILES = """
import importlib.util, sys
import numpy as np

spec = importlib.util.spec_from_file_location("roundoff.kernels._compiled", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
print(kernels.level())
for line in sys.stdin:
    size, first, first_code, second, second_code = line.split()
    a, b, row = np.fromfile(first, np.uint8), np.fromfile(second, np.uint8), np.empty(12)
    kernels.difference(a.ctypes.data, int(first_code), b.ctypes.data, int(second_code), int(size), row.ctypes.data)
    print(row.tobytes().hex())
"""


@pytest.mark.skipif(compiled_kernels() is None, reason="the kernels are not compiled")
def test_every_instruction_set_gives_the_same(tmp_path: Path):
    cases = [(first, second, size) for first in DTYPES for second in DTYPES for size in (17, 5000)]
    lines = []
    for number, (first, second, size) in enumerate(cases):
        words = [str(size)]
        for seed, dtype in enumerate((first, second)):
            path = tmp_path / f"{number}-{seed}"
            tensor(size, dtype, seed=seed, special=number % 2 == 0).view(torch.uint8).numpy().tofile(path)
            words += [str(path), str(DTYPE_CODES[dtype])]
        lines.append(" ".join(words))
    printed = {}
    for level in ("plain", "v3", "v4"):
        found = subprocess.run(
            [sys.executable, "-c", DIFFERENCE_OF_FILES, str(compiled_kernels().__file__)],
            env={**os.environ, "ROUNDOFF_ISA": level},
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        name, *rows = found.stdout.splitlines()
        printed[name] = rows
        assert len(rows) == len(cases)
    assert len({tuple(rows) for rows in printed.values()}) == 1


@pytest.mark.usefixtures("either_kernel")
def test_both_kernels_measure_the_difference():
    found = difference(torch.tensor([3.0, 4.0, math.nan]), torch.tensor([3.0, 7.0, 1.0]))
    assert (found.largest, found.largest_at, found.norm) == (3.0, 1, 3.0)
    assert (found.num_different, found.num_unlike, found.first_unlike) == (2, 1, 2)
