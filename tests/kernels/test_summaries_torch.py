"""The torch version of the summary never waits for the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from roundoff.kernels import row as columns
from roundoff.kernels.summaries import hash_torch, histogram_torch, summarize_torch
from tests.kernels.plain_summary import DTYPES, tensor_of

RARE = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.uint16, torch.uint64]
SHAPES = [(), (0,), (3000,), (3, 1000), (2, 3, 5, 7), (2, 3, 32, 32)]


class FailsOnWaiting(TorchDispatchMode):
    """Lets no op through whose result the host has to wait for."""

    WAITING = (
        "aten._local_scalar_dense",
        "aten.item",
        "aten.nonzero",
        "aten.masked_select",
        "aten.equal",
        "aten.unique",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not str(func).startswith(self.WAITING), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def example(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return tensor_of(shape, dtype) if dtype in DTYPES else torch.ones(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES + RARE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_waits_for_the_device(shape: tuple[int, ...], dtype: torch.dtype):
    x = example(shape, dtype)
    with FailsOnWaiting():
        assert summarize_torch(x).shape == (columns.ROW_WIDTH,)
        assert histogram_torch(x).shape == (columns.NUM_HISTOGRAM_BUCKETS,)


def test_waiting_would_be_noticed():
    with FailsOnWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).sum().item()


@pytest.mark.parametrize("dtype", DTYPES + RARE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_device_that_holds_no_values_is_enough(shape: tuple[int, ...], dtype: torch.dtype):
    x = torch.empty(shape, dtype=dtype, device="meta")
    row = summarize_torch(x)
    assert (row.device.type, row.dtype, row.shape) == ("meta", torch.float64, (columns.ROW_WIDTH,))
    assert hash_torch(x).dtype == torch.int64
    assert histogram_torch(x).device.type == "meta"


def test_a_tensor_of_one_element_may_have_any_stride():
    x = torch.randn(7, dtype=torch.float64)
    assert hash_torch(x[3::5]).item() == hash_torch(x[3:4]).item()
    assert hash_torch(x[7::5]).item() == 0


def test_the_tensor_is_left_as_it_was():
    x = tensor_of((3, 1000), torch.float32)
    before = x.clone()
    summarize_torch(x)
    assert x.view(torch.int32).equal(before.view(torch.int32))
