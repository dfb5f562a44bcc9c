"""Saving tensors inside any framework: numpy alone is needed, names are safe, values stay what they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff import save_tensor
from roundoff.compare.tensors.save_tensor import BFLOAT16, as_array
from roundoff.errors import CompareError

WITHOUT_TORCH = """
import sys
from pathlib import Path


class NoTorch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "backports", "safetensors", "click"):
            raise ImportError(f"{name} must not be needed")


sys.meta_path.insert(0, NoTorch)
import numpy as np

import roundoff

path = roundoff.save_tensor("conv1", np.arange(6.0).reshape(2, 3), to=Path(sys.argv[1]))
assert "torch" not in sys.modules
print(path.name)
"""


class Foreign:
    """A tensor as other frameworks have them: known by its dtype's name and one way to numpy."""

    def __init__(self, array: np.ndarray, dtype: str, method: str) -> None:
        self.dtype = dtype
        setattr(self, method, lambda: array)


def test_works_in_a_process_where_torch_cannot_be_imported(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.stderr) == ("00000-conv1.npy\n", "")
    assert np.load(tmp_path / "00000-conv1.npy").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_files_are_numbered_in_order_and_none_is_written_over(tmp_path: Path):
    for number in range(12):
        save_tensor("x", np.array(number), to=tmp_path / "here")
    (tmp_path / "here" / "00003-x.npy").unlink()
    save_tensor("y", np.array(12), to=tmp_path / "here")
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names[-2:] == ["00011-x.npy", "00012-y.npy"]
    assert [int(np.load(tmp_path / "here" / name)) for name in names] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("there", "file"),
    [
        (["00041-x.npy", "notes.txt"], "00042-y.npy"),
        (["99998-x.npy"], "99999-y.npy"),
        (["99999-x.npy"], "100000-y.npy"),
        (["99999-x.npy", "100007-x.npy"], "100008-y.npy"),
        (["x.npy", "7-x.npy"], "00008-y.npy"),
    ],
    ids=str,
)
def test_the_next_number_is_above_all_that_are_there(tmp_path: Path, there: list[str], file: str):
    for name in there:
        (tmp_path / name).write_bytes(b"")
    assert save_tensor("y", np.zeros(1), to=tmp_path).name == file


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("../../x", "00000-x.npy"),
        ("<b>", "00000-b.npy"),
        ("/etc/passwd", "00000-etc_passwd.npy"),
        ("a\nb\0c", "00000-a_b_c.npy"),
        ("", "00000-tensor.npy"),
        ("..", "00000-tensor.npy"),
        ("x" * 1000, f"00000-{'x' * 120}.npy"),
        ("blocks.3.mlp/out:0", "00000-blocks.3.mlp_out_0.npy"),
    ],
)
def test_hostile_names_become_safe_ones(tmp_path: Path, name: str, file: str):
    path = save_tensor(name, np.zeros(1), to=tmp_path / "tensors")
    assert path == tmp_path / "tensors" / file
    assert [found.name for found in tmp_path.iterdir()] == ["tensors"]


def test_torch_tensors_are_taken_as_they_are():
    x = torch.randn(4, 5, requires_grad=True)
    assert as_array(x.t()).tolist() == x.t().tolist()
    assert as_array(torch.tensor([1 + 2j]).conj()).tolist() == [1 - 2j]
    assert as_array(torch.tensor([True, False])).dtype == np.bool_
    assert as_array(torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn)).tolist() == [0.5, 448.0]


def test_bfloat16_stays_bfloat16():
    x = torch.tensor([1.0, -2.5, float("nan"), float("inf"), 1e-40, 3e38]).bfloat16()
    array = as_array(x)
    assert array.dtype == BFLOAT16
    assert array.view(np.int16).tolist() == x.view(torch.int16).tolist()


@pytest.mark.parametrize("method", ["asnumpy", "numpy"])
def test_tensors_of_other_frameworks_are_fetched_their_way(method: str):
    values = np.array([1.0, 2.0], np.float32)
    assert as_array(Foreign(values, "Float32", method)).tolist() == [1.0, 2.0]
    wide = as_array(Foreign(values, "BFloat16", method))
    bits = as_array(Foreign(np.array([0x3F80, 0x4000], np.uint16), "paddle.bfloat16", method))
    assert wide.dtype == bits.dtype == BFLOAT16
    assert wide.view(np.uint16).tolist() == bits.view(np.uint16).tolist() == [0x3F80, 0x4000]


def test_what_has_an_array_is_taken_by_it():
    class WithArray:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.array([1, 2, 3])

    assert as_array(WithArray()).tolist() == [1, 2, 3]
    assert as_array([1.5, 2.5]).tolist() == [1.5, 2.5]
    assert as_array(3).tolist() == 3


@pytest.mark.parametrize("x", ["text", {"a": 1}, None, [object()]], ids=["text", "dict", "none", "objects"])
def test_what_holds_no_numbers_is_an_error_that_names_the_tensor(tmp_path: Path, x: object):
    with pytest.raises(CompareError, match="'loss'"):
        save_tensor("loss", x, to=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CompareError, match="cannot be saved in"):
        save_tensor("x", np.zeros(1), to=tmp_path / "file")
