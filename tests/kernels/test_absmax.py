import math

import pytest
import torch

from roundoff.errors import KernelError
from roundoff.kernels.summaries import absmax, absmax_torch

EVERY_DTYPE = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 1000, 100_003])
def test_equals_torch(dtype, size):
    x = torch.randn(size, dtype=torch.float64).to(dtype)
    found = absmax(x)
    assert found.value.dtype == dtype
    assert found.value == x.abs().max()
    assert found.num_nonfinite == 0
    assert absmax_torch(x) == found


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
def test_counts_what_is_not_finite_and_looks_past_it(dtype):
    x = torch.randn(40_000, dtype=torch.float64).to(dtype)
    largest = x.abs().max()
    x = torch.cat([torch.tensor([math.nan, math.inf, -math.inf] * 7000, dtype=dtype), x, -largest[None]])
    for found in (absmax(x), absmax_torch(x)):
        assert found.value == largest
        assert found.num_nonfinite == 21_000


@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf], [0.0, -0.0]])
def test_is_zero_where_nothing_finite_is_larger(dtype, values):
    x = torch.tensor(values, dtype=dtype)
    for found in (absmax(x), absmax_torch(x)):
        assert found.value.item() == 0
        assert not found.value.signbit()
        assert found.num_nonfinite == x.numel() - x.isfinite().sum()


def test_sees_the_smallest_subnormal():
    assert absmax(torch.tensor([-1e-45])).value.item() == torch.tensor(1e-45).item()


def test_strides_do_not_matter():
    x = torch.randn(30, 40)
    x[3, 5] = -77
    x[:, 1::2] = x[:, 1::2].clamp(-1, 1)
    assert absmax(x.t()).value == absmax(x).value
    x[3, 5] = 99  # in a column that the next view leaves out
    assert absmax(x[:, ::2]).value == x[:, ::2].abs().max()


def test_integers_are_an_error():
    with pytest.raises(KernelError):
        absmax(torch.ones(3, dtype=torch.int32))


@pytest.mark.usefixtures("either_kernel")
def test_both_kernels_find_the_largest_finite_magnitude():
    found = absmax(torch.tensor([[1.0, -3.0], [math.nan, -math.inf]]))
    assert (found.value, found.num_nonfinite) == (3.0, 2)
    assert absmax(torch.zeros(0)).value == 0
