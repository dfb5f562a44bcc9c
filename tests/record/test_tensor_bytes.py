"""The bytes of a tensor are those of its elements, in row-major order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from roundoff.record.tensor_bytes import SAFETENSORS_NAMES, bytes_of, file_dtype
from roundoff.tensor_header import TENSOR_DTYPES


def elements(x: Tensor) -> list[object]:
    return torch.frombuffer(bytearray(bytes_of(x).tobytes()), dtype=x.dtype).tolist() if x.numel() else []


TENSORS = {
    "a vector": torch.arange(5.0),
    "a scalar": torch.tensor(2.5),
    "nothing": torch.empty(0, 3),
    "a transpose": torch.arange(6.0).view(2, 3).t(),
    "every second": torch.arange(10.0)[::2],
    "with an offset": torch.arange(10.0)[3:],
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3),
    "one element of odd stride": torch.arange(6.0).view(2, 3)[:1, 1:2].t(),
    "channels last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "with a gradient": torch.ones(3, requires_grad=True) * 2,
    "a conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "an imaginary part of a conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "booleans": torch.tensor([True, False, True]),
    "bf16": torch.tensor([1.5, -0.0]).bfloat16(),
}


@pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS.keys())
def test_gives_the_elements_in_row_major_order(x):
    assert elements(x) == x.detach().flatten().tolist()


def test_a_contiguous_tensor_is_not_copied():
    x = torch.zeros(4)
    data = bytes_of(x)
    x[0] = 1.0
    assert data.any()


def test_names_every_dtype_that_a_file_can_hold():
    assert {str(dtype)[6:]: name for dtype, name in SAFETENSORS_NAMES.items()} == {
        dtype.torch: name for name, dtype in TENSOR_DTYPES.items()
    }


def test_has_no_name_for_a_dtype_that_a_file_cannot_hold():
    assert file_dtype(torch.ones(1, dtype=torch.complex128)) is None


def test_the_memory_of_the_tensor_can_still_be_resized():
    x = torch.zeros(4)
    data = bytes_of(x).copy()
    x.untyped_storage().resize_(0)
    assert data.tolist() == [0] * 16
