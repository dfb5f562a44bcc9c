"""The compiled summary and its torch version give the numbers of a plain loop, and the same ones."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from roundoff.kernels import compiled_kernels, histogram, summarize
from roundoff.kernels import row as columns
from roundoff.kernels.compiled import READABLE_DTYPE_CODES
from roundoff.kernels.summaries import histogram_torch, summarize_at, summarize_torch
from tests.kernels.plain_summary import (
    COUNTS,
    DTYPES,
    FLOATS,
    SHAPES,
    WORDS,
    assert_same,
    channels_of,
    hash_of,
    plain_summary,
    tensor_of,
)

needs_compiled = pytest.mark.skipif(compiled_kernels() is None, reason="the compiled kernels are not built")
SMALL = [shape for shape in SHAPES if math.prod(shape) <= 6000]


def by_torch(x: Tensor) -> np.ndarray:
    return summarize_torch(x.detach()).numpy()


def assert_both_right(x: Tensor) -> None:
    """Demand of both versions what a plain loop over `x` gives."""
    plain = plain_summary(x)
    for row in (summarize(x), by_torch(x)):
        assert_same(row, plain.row, plain.num_channels)
        assert hash_of(row) == plain.hash


def dtypes_for(shape: tuple[int, ...]) -> list[torch.dtype]:
    return DTYPES if math.prod(shape) <= 2**20 else [torch.float64, torch.float32, torch.uint8]


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_both_versions_give_the_numbers_of_a_plain_loop(shape: tuple[int, ...], dtype: torch.dtype):
    assert_both_right(tensor_of(shape, dtype, seed=len(shape)))


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(shape, dtype) for shape in SHAPES if math.prod(shape) > 6000 for dtype in dtypes_for(shape)],
    ids=str,
)
def test_large_tensors_give_the_same_in_both_versions(shape: tuple[int, ...], dtype: torch.dtype):
    for special in (False, True):
        x = tensor_of(shape, dtype, special=special)
        first, second = summarize(x), by_torch(x)
        assert_same(first, second, channels_of(shape)[0])
        assert hash_of(first) == hash_of(second)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_special_value_is_found_at_every_place_of_a_chunk(dtype: torch.dtype):
    clean = torch.linspace(-3, -1, 1100).to(dtype)
    subnormal = torch.ones((), dtype=WORDS[dtype.itemsize]).view(dtype)
    for value, place in [(math.nan, columns.NUM_NAN), (math.inf, columns.NUM_POSINF), (-math.inf, columns.NUM_NEGINF),
                         (-0.0, columns.NUM_ZERO), (subnormal, columns.NUM_SUBNORMAL)]:  # fmt: skip
        for index in (*range(0, 40), *range(1000, 1100)):
            x = clean.clone()
            x[index] = value
            expected = [float(i == place) for i in range(columns.NUM_NAN, columns.NUM_SUBNORMAL + 1)]
            assert summarize(x)[COUNTS].tolist() == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("num", [1, 16, 1024, 1030])
def test_nothing_finite_gives_nan_as_extrema_and_zero_as_sums(value: float, num: int):
    x = torch.full((num,), value)
    for row in (summarize(x), by_torch(x)):
        assert np.isnan(row[: columns.SUM]).all()
        assert not row[columns.SUM : columns.NUM_NAN].any()
        assert not row[columns.SKETCH :].any()
        assert row[COUNTS].sum() == num
    assert_both_right(x)


def test_squares_of_huge_doubles_overflow_and_nothing_else_does():
    x = torch.full((3000,), 1e200, dtype=torch.float64)
    x[7] = -2e200
    x[2500] = math.nan
    assert_both_right(x)
    assert summarize(x)[columns.SUM_SQUARES] == math.inf
    assert summarize(x)[columns.NUM_POSINF] == 0


def test_squares_of_tiny_floats_do_not_vanish():
    x = torch.full((1024,), 1e-45)  # the smallest fp32; its square is 2e-90
    assert summarize(x)[columns.SUM_SQUARES] == 1024 * 2.0**-298


def test_sums_are_accumulated_in_doubles():
    x = torch.cat([torch.full((1,), 2.0**30), torch.full((100_000,), 2.0**-20), torch.full((1,), -(2.0**30))])
    assert summarize(x)[columns.SUM] == 100_000 * 2.0**-20


def test_large_integers_are_rounded_once_to_doubles():
    x = torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, 0])
    assert_both_right(x)
    assert summarize(x)[: columns.SUM].tolist() == [-(2.0**63), 2.0**63]


@needs_compiled
def test_counts_are_exact_beyond_two_to_the_24():
    num = 2**24 + 3
    zeros = torch.zeros(num, dtype=torch.bool)
    assert summarize(zeros)[columns.NUM_ZERO] == num
    assert summarize(~zeros)[columns.SUM] == num
    half = torch.full((num,), math.nan, dtype=torch.float16)
    assert summarize(half)[columns.NUM_NAN] == num
    half[:] = 2.0**-24
    assert summarize(half)[columns.NUM_SUBNORMAL] == num
    assert summarize(half)[columns.SUM] == num * 2.0**-24


@pytest.mark.slow
def test_counts_of_the_torch_version_are_exact_beyond_two_to_the_24():
    x = torch.zeros(2**24 + 3, dtype=torch.uint8)
    x[5] = 3
    assert by_torch(x)[columns.NUM_ZERO] == 2**24 + 2
    assert hash_of(by_torch(x)) == hash_of(summarize(x))


# -- strides -----------------------------------------------------------------------------------------------------------


def strided_views() -> dict[str, Tensor]:
    x = tensor_of((24, 40), torch.float32)
    picture = tensor_of((2, 13, 9, 11), torch.float32)
    return {
        "transpose": x.t(),
        "every other column": x[:, ::2],
        "every third row": x[::3],
        "a block": x[3:17, 5:29],
        "a column": x[:, 7],
        "a diagonal": x.diagonal(),
        "from the second element on": x.view(-1)[1:],
        "expanded rows": x[:1].expand(50, 40),
        "expanded columns": x[:, :1].expand(24, 100),
        "one number for all": x[0, 0].expand(7, 300),
        "permuted": picture.permute(2, 0, 3, 1),
        "channels last": picture.to(memory_format=torch.channels_last),
        "channels last, one channel": picture[:, :1].to(memory_format=torch.channels_last),
        "volumes, channels last": tensor_of((2, 3, 4, 5, 6), torch.float32).to(memory_format=torch.channels_last_3d),
        "flipped": x.flip(0),
        "windows that overlap": x.view(-1)[:500].unfold(0, 20, 3),
        "dimensions of one": x[None, :, None, ::2],
        "sliced pictures": picture[:, 2:9, ::2, 1:],
    }


@pytest.mark.parametrize("name", strided_views())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_a_view_gives_what_its_contiguous_copy_gives(name: str, dtype: torch.dtype):
    view = strided_views()[name].nan_to_num(0, 100, -100) if dtype == torch.int8 else strided_views()[name]
    if dtype != torch.float32:
        base = torch.empty_strided(view.shape, view.stride(), dtype=dtype) if 0 not in view.stride() else None
        view = view.to(dtype) if base is None else base.copy_(view)
    first, second = summarize(view), summarize(view.contiguous())
    assert first.tobytes() == second.tobytes()
    assert_both_right(view)


def test_values_under_a_lazy_minus_sign_are_read_with_it():
    x = torch.tensor([1.0 + 2.0j, 3.0 - 4.0j]).conj().imag
    assert x.is_neg()
    assert summarize(x)[: columns.SUM_ABS].tolist() == [-2.0, 4.0, 2.0]
    assert hash_of(summarize(x)) == hash_of(summarize(x.clone()))


@pytest.mark.parametrize("num_dims", [16, 17, 25])
def test_tensors_of_many_dimensions_are_summarized(num_dims: int):
    x = torch.randn([2] * 3 + [1] * (num_dims - 5) + [2] * 2).transpose(0, -1)
    assert_both_right(x)


def test_a_tensor_that_requires_grad_is_summarized_and_left_alone():
    x = torch.randn(5, requires_grad=True)
    before = x.detach().clone()
    summarize(x * 2)
    assert summarize(x)[columns.MAX] == before.max()
    assert x.grad is None
    assert torch.equal(x.detach(), before)


# -- properties --------------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38, 65504.0, 6e-8]),
)


@given(values=st.lists(numbers, max_size=80), dtype=st.sampled_from(FLOATS))
@settings(deadline=None, max_examples=150)
def test_whatever_the_values_both_versions_are_right(values: list[float], dtype: torch.dtype):
    assert_both_right(torch.tensor(values, dtype=torch.float64).to(dtype))


@given(
    shape=st.lists(st.integers(0, 9), max_size=5),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_whatever_the_view_both_versions_are_right(
    shape: list[int], dtype: torch.dtype, seed: int, data: st.DataObject
):
    x = tensor_of(tuple(shape), dtype, seed=seed)
    if x.dim():
        x = x.permute(data.draw(st.permutations(range(x.dim()))))
        dim = data.draw(st.integers(0, x.dim() - 1))
        x = x[(slice(None),) * dim + (slice(data.draw(st.integers(0, 3)), None, data.draw(st.integers(1, 3))),)]
    assert_both_right(x)


@given(rows=st.integers(1, 6), channels=st.integers(1, 2100), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=60)
def test_whatever_the_number_of_channels_both_versions_agree(rows: int, channels: int, seed: int):
    x = tensor_of((rows, channels), torch.float32, seed=seed)
    assert_same(summarize(x), by_torch(x), channels)


# -- circumstances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_flushing_subnormals_changes_no_count(dtype: torch.dtype):
    x = tensor_of((3000,), dtype)
    before, histogram_before = summarize(x), histogram(x)
    assert before[columns.NUM_SUBNORMAL] > 0
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        rows = [summarize(x), by_torch(x)]
        histograms = [histogram(x), histogram_torch(x).numpy()]
    finally:
        torch.set_flush_denormal(False)
    for row in rows:
        assert row[COUNTS].tolist() == before[COUNTS].tolist()
        assert hash_of(row) == hash_of(before)
    for counts in histograms:
        assert counts.tolist() == histogram_before.tolist()


SUMMARIZE_FILES = """
import importlib.util, sys
import numpy as np

spec = importlib.util.spec_from_file_location("roundoff.kernels._compiled", sys.argv[1])
kernels = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernels)
row = np.empty(int(sys.argv[2]))
print(kernels.level())
for line in sys.stdin:  # without torch, which takes seconds to import
    path, code, *shape = line.split()
    data, shape = np.fromfile(path, np.uint8), tuple(map(int, shape))
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    kernels.summarize(data.ctypes.data, int(code), shape, strides, row.ctypes.data)
    print(row.tobytes().hex())
"""


def run_python(code: str, *args: str, text: str = "", **environment: str) -> list[str]:
    """Run `code` in a fresh interpreter and return the lines it prints."""
    command = [sys.executable, "-W", "error", "-c", code, *args]
    found = subprocess.run(
        command, env={**os.environ, **environment}, input=text, capture_output=True, text=True, check=True, timeout=300
    )
    return found.stdout.splitlines()


@needs_compiled
@pytest.mark.parametrize("level", ["plain", "v3", "v4"])
def test_every_instruction_set_gives_the_same(level: str, tmp_path: Path):
    tensors = {f"{i}-{dtype}": tensor_of(shape, dtype) for i, shape in enumerate(SHAPES) for dtype in FLOATS}
    text = ""
    for name, x in tensors.items():
        x.reshape(-1).view(WORDS[x.element_size()]).numpy().tofile(tmp_path / name)
        text += " ".join(map(str, [tmp_path / name, READABLE_DTYPE_CODES[x.dtype], *x.shape])) + "\n"
    module = compiled_kernels()
    assert module is not None
    found = run_python(SUMMARIZE_FILES, str(module.__file__), str(columns.ROW_WIDTH), text=text, ROUNDOFF_ISA=level)
    if level not in found[0]:
        pytest.skip(f"this processor has no {level}")
    assert len(found) == 1 + len(tensors)
    for x, line in zip(tensors.values(), found[1:], strict=True):
        here, there = summarize(x), np.frombuffer(bytes.fromhex(line))
        if x.dtype == torch.float64:
            assert_same(there, here, channels_of(tuple(x.shape))[0])
            assert hash_of(there) == hash_of(here)
        else:
            assert there.tobytes() == here.tobytes(), (x.shape, x.dtype)


SUMMARIZE_ONE = """
import torch
from roundoff.kernels import kernels_in_use, summarize
from roundoff.kernels.summaries import summarize_at
from roundoff.kernels.summaries import summarize_torch

x = torch.linspace(-1, 1, 3000).view(3, 1000)
print(kernels_in_use(), summarize_at(x, 0), summarize(x).tobytes() == summarize_torch(x).numpy().tobytes(), sep="\\n")
"""


def test_the_torch_version_is_used_if_requested():
    found = run_python(SUMMARIZE_ONE, ROUNDOFF_KERNELS="torch")
    assert found == ["torch (ROUNDOFF_KERNELS=torch is set)", "False", "True"]


@needs_compiled
def test_a_row_is_written_to_the_address_and_nowhere_else():
    rows = np.full((3, columns.ROW_WIDTH), 7.0)
    assert summarize_at(torch.tensor([1.0, 2.0]), rows[1].ctypes.data)
    assert rows[1, : columns.SUM_ABS].tolist() == [1.0, 2.0, 3.0]
    assert (rows[[0, 2]] == 7.0).all()


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz], ids=str
)
def test_eight_bit_floats_take_the_torch_version(dtype: torch.dtype):
    codes = torch.arange(256, dtype=torch.uint8)
    x = codes.view(dtype)
    assert not summarize_at(x, 0)
    row, plain = summarize(x), plain_summary(x.float())
    np.testing.assert_array_equal(row[: columns.NUM_SUBNORMAL], plain.row[: columns.NUM_SUBNORMAL])
    smallest_normal = torch.finfo(dtype).smallest_normal
    assert row[columns.NUM_SUBNORMAL] == sum(0 < abs(v) < smallest_normal for v in x.float().tolist())
    assert hash_of(row) == plain_summary(codes).hash
    assert histogram(x).tolist() == histogram(x.float()).tolist()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_numbers_count_as_two(dtype: torch.dtype):
    x = torch.tensor([1 + 2j, complex(math.nan, math.inf), -3j, 0], dtype=dtype)
    assert not summarize_at(x, 0)
    row = summarize(x)
    assert row[:10].tolist() == [-3.0, 2.0, 0.0, 6.0, 14.0, 1.0, 1.0, 0.0, 3.0, 0.0]
    assert hash_of(row) == plain_summary(torch.view_as_real(x)).hash
    assert summarize(x.conj())[columns.MAX] == 3.0


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_wide_unsigned_integers_take_the_torch_version(dtype: torch.dtype):
    x = torch.tensor([0, 3, torch.iinfo(dtype).max], dtype=dtype)
    assert not summarize_at(x, 0)
    largest = float(torch.iinfo(dtype).max)
    assert summarize(x)[: columns.SUM_SQUARES].tolist() == [0.0, largest, 3.0 + largest, 3.0 + largest]
    assert summarize(x)[COUNTS].tolist() == [0, 0, 0, 1, 0]


# -- histogram ---------------------------------------------------------------------------------------------------------


def plain_histogram(x: Tensor) -> list[int]:
    counts = [0] * columns.NUM_HISTOGRAM_BUCKETS
    for value in x.reshape(-1).tolist():
        if value and math.isfinite(value):
            counts[min(63, max(0, math.frexp(abs(value))[1] - 1 + 40))] += 1
    return counts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (1024,), (5000,), (3, 5), (2, 3, 32, 32), (2, 13, 7, 9)], ids=str)
def test_both_histograms_are_those_of_a_plain_loop(shape: tuple[int, ...], dtype: torch.dtype):
    for special in (False, True):
        x = tensor_of(shape, dtype, special=special)
        expected = plain_histogram(x)
        assert histogram(x).tolist() == expected
        assert histogram_torch(x).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_buckets_begin_at_powers_of_two_and_the_outer_ones_are_open(dtype: torch.dtype):
    for exponent in range(-60, 30):
        edge = torch.tensor(2.0**exponent, dtype=dtype)
        bucket = min(63, max(0, exponent + 40))
        below = min(63, max(0, exponent + 39))
        for x, expected in ((edge, bucket), (-edge, bucket), (edge.nextafter(torch.zeros((), dtype=dtype)), below)):
            assert histogram(x).nonzero()[0].tolist() == histogram_torch(x).numpy().nonzero()[0].tolist() == [expected]


def test_a_histogram_reads_views_and_leaves_zero_and_non_finite_out():
    x = torch.tensor([[1.0, math.nan, 4.0], [0.0, math.inf, -5.0]]).t()
    assert {b: n for b, n in enumerate(histogram(x)) if n} == {40: 1, 42: 2}


@pytest.mark.parametrize("read", [summarize, histogram])
def test_a_tensor_without_memory_of_its_own_is_refused(read):
    class StandIn(torch.Tensor):
        __torch_dispatch__ = None

    stand_in = torch.Tensor._make_wrapper_subclass(StandIn, (2, 3))
    with (
        torch._C.DisableTorchFunction(),
        pytest.raises(RuntimeError, match=r"a StandIn of shape \(2, 3\) has no memory of its own"),
    ):
        read(stand_in)
