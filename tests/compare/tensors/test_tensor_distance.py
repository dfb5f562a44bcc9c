"""How far two whole tensors are apart, where, and whether their formats explain it."""

from __future__ import annotations

import math

import pytest
import torch

from roundoff.compare.tensors.tensor_distance import coarser_name, measure_distance


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_reports_the_place_of_the_largest_difference_and_its_values():
    x = randn(4, 5, 6)
    y = x.clone()
    y[1, 2, 3] += 2
    found = measure_distance(x, y)
    assert found.position == (1, 2, 3)
    assert found.values == (float(x[1, 2, 3]), float(y[1, 2, 3]))
    assert found.max_abs == pytest.approx(2)
    assert found.num_different == 1


def test_relative_error_and_cosine_are_those_of_the_whole():
    x, y = randn(100, 50), 1.01 * randn(100, 50)
    found = measure_distance(x, y)
    assert found.relative == pytest.approx(0.01, rel=1e-4)
    assert found.cosine == pytest.approx(1)
    assert found.ulps == pytest.approx(0.01 / 2**-23, rel=1e-4)
    assert not found.is_explained()


@pytest.mark.parametrize(("shape", "dim"), [((64, 32), 1), ((2, 8, 16), 2), ((2, 16, 5, 5), 1)], ids=str)
def test_names_the_channel_where_the_difference_is_local(shape: tuple[int, ...], dim: int):
    x = randn(*shape)
    y = x * (1 + 1e-7)
    y.select(dim, 11).mul_(1.05) if shape[dim] > 11 else y.select(dim, 3).mul_(1.05)
    assert measure_distance(x, y).channel == (11 if shape[dim] > 11 else 3)
    assert measure_distance(x, 1.05 * x).channel is None


def test_equal_tensors_are_equal_and_point_nowhere():
    x = randn(3, 3)
    x[0, 0] = math.nan
    found = measure_distance(x, x.clone())
    assert (found.is_equal, found.is_explained(), found.position, found.values) == (True, True, None, None)
    assert found.num_nonfinite == (1, 1)


def test_a_value_that_is_finite_in_one_only_no_format_explains_and_is_pointed_at():
    x = randn(10, 10)
    y = x.clone()
    y[3, 4], y[0, 0] = math.inf, 5.0
    found = measure_distance(x, y)
    assert (found.is_explained(), found.position, found.num_unlike, found.num_nonfinite) == (False, (3, 4), 1, (0, 1))
    assert found.values is not None
    assert found.values[1] == math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str)
def test_rounding_to_the_candidates_format_is_explained(dtype: torch.dtype):
    x = randn(100, 100)
    found = measure_distance(x, x.to(dtype))
    assert found.unit == str(dtype).removeprefix("torch.")
    assert 0 < found.ulps < 1
    assert found.is_explained()


def test_another_order_of_sums_is_explained_and_another_factor_is_not():
    x = randn(300, 500)
    narrow, wide = x @ randn(500, 200), (x.double() @ randn(500, 200).double()).float()
    assert not measure_distance(wide, narrow).is_equal
    assert measure_distance(wide, narrow).is_explained()
    assert not measure_distance(wide, 1.0001 * narrow).is_explained()


def test_whole_numbers_are_equal_or_different():
    x = torch.arange(10)
    y = x.clone()
    y[4] = 7
    assert measure_distance(x, x.clone()).is_equal
    assert measure_distance(x, x.int()).is_explained()
    found = measure_distance(x, y)
    assert (found.is_explained(), found.position, found.ulps) == (False, (4,), math.inf)


def test_complex_numbers_have_one_position_each():
    x = torch.tensor([[1 + 1j, 2 + 2j], [3 + 3j, 4 + 4j]])
    y = x.clone()
    y[1, 0] += 5j
    assert measure_distance(x, y).position == (1, 0)


def test_zeros_against_numbers_are_not_explained():
    assert not measure_distance(torch.zeros(3), torch.ones(3)).is_explained()
    assert measure_distance(torch.zeros(3), torch.zeros(3)).is_explained()


def test_empty_tensors_and_scalars_are_measured():
    assert measure_distance(torch.zeros(0, 3), torch.zeros(0, 3)).is_equal
    assert measure_distance(torch.tensor(1.0), torch.tensor(2.0)).position == ()


def test_the_coarser_format_counts():
    assert coarser_name(torch.float32, torch.bfloat16) == "bfloat16"
    assert coarser_name(torch.float64, torch.float32) == "float32"
    assert coarser_name(torch.int64, torch.float32) == "float32"


def test_an_error_that_was_there_before_explains_one_a_few_times_as_large():
    x = randn(100, 100).bfloat16()
    found = measure_distance(x, 1.05 * x)
    assert not found.is_explained()
    assert found.is_explained(inherited=0.02)


def test_nothing_explains_more_than_a_quarter_of_the_norm():
    x = randn(100, 100).to(torch.float8_e5m2)
    assert not measure_distance(x, (1.5 * x.float()).to(torch.float8_e5m2)).is_explained(inherited=1.0)
