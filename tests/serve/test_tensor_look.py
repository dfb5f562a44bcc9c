"""A look at a tensor, for every dtype that a file can hold."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from roundoff.runs import TensorFile, to_json
from roundoff.serve import saved_tensors as tensor_look
from roundoff.serve.saved_tensors import npy_chunks, preview_tensor

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.uint8,
    torch.bool,
)


def saved(folder: Path, tensor: torch.Tensor) -> TensorFile:
    save_file({"x": tensor}, folder / "x.safetensors")
    return TensorFile(folder / "x.safetensors")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_read_as_torch_reads_it(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0]]).to(dtype)
    file = saved(tmp_path, values)
    look = preview_tensor(file, "x")
    wide = values.to(torch.float64)
    assert (f"torch.{look.dtype}", look.shape, look.num_elements) == (str(dtype), (2, 3), 6)
    assert list(look.first) == wide.flatten().tolist()
    assert (look.min, look.max, look.mean) == (wide.min().item(), wide.max().item(), wide.mean().item())
    assert look.l2 == pytest.approx(wide.norm().item())
    assert look.num_zero == 2
    array = np.load(io.BytesIO(b"".join(npy_chunks(file, "x"))), allow_pickle=False)
    assert array.shape == (2, 3)
    assert array.astype(np.float64).tolist() == wide.tolist()


def test_what_is_not_finite_is_counted_and_left_out_of_the_rest(tmp_path: Path) -> None:
    look = preview_tensor(saved(tmp_path, torch.tensor([math.nan, math.inf, math.inf, -math.inf, 3.0, -4.0])), "x")
    assert (look.num_nan, look.num_posinf, look.num_neginf) == (1, 2, 1)
    assert (look.min, look.max, look.mean, look.l2) == (-4.0, 3.0, -0.5, 5.0)
    assert look.exponents == {1: 1, 2: 1}
    assert '"nan"' in to_json(look.to_object())


def test_exponents_are_exact_at_powers_of_two_and_for_subnormals(tmp_path: Path) -> None:
    values = torch.tensor([1.0, math.nextafter(1.0, 0.0), 2.0**-1074, 2.0**1023, -0.5, 0.0], dtype=torch.float64)
    assert preview_tensor(saved(tmp_path, values), "x").exponents == {0: 1, -1: 2, -1074: 1, 1023: 1}


def test_chunks_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path, torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    whole = preview_tensor(file, "x")
    monkeypatch.setattr(tensor_look, "CHUNK", 37)
    parts = preview_tensor(file, "x")
    assert parts.first == whole.first
    assert (parts.min, parts.max, parts.exponents) == (whole.min, whole.max, whole.exponents)
    assert (parts.mean, parts.l2) == (pytest.approx(whole.mean), pytest.approx(whole.l2))
    assert len(whole.first) == 64


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_tensors_are_looked_at_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = saved(tmp_path, torch.ones(shape))
    look = preview_tensor(file, "x")
    assert (look.shape, look.num_elements, look.num_nan) == (shape, math.prod(shape), 0)
    assert math.isnan(look.mean) == (math.prod(shape) == 0)
    assert np.load(io.BytesIO(b"".join(npy_chunks(file, "x")))).shape == shape


def test_all_nan_has_no_extremes(tmp_path: Path) -> None:
    look = preview_tensor(saved(tmp_path, torch.full((3,), math.nan)), "x")
    assert math.isnan(look.min)
    assert look.exponents == {}


def test_complex_numbers_are_looked_at_by_magnitude(tmp_path: Path) -> None:
    look = preview_tensor(saved(tmp_path, torch.tensor([3 + 4j, 0j])), "x")
    assert (look.max, look.num_zero) == (5.0, 1)
