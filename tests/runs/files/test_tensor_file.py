import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from roundoff.errors import RunFolderError
from roundoff.runs import TensorFile, TensorWriter
from roundoff.tensor_header import TENSOR_DTYPES, TensorEntry


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("dtype", TENSOR_DTYPES.values(), ids=lambda dtype: dtype.name)
def test_every_dtype_comes_back_in_torch_bit_for_bit(tmp_path: Path, dtype):
    bits = torch.arange(16 * dtype.num_bytes, dtype=torch.uint8)
    bits = bits % 2 if dtype.name == "BOOL" else bits
    tensor = bits.view(getattr(torch, dtype.torch)).reshape(4, 4)
    with TensorWriter(tmp_path / "a.safetensors") as writer:
        writer.add("odd", b"\x01", dtype="U8", shape=(1,))  # what follows is not aligned
        writer.add("a", bits.numpy(), dtype=dtype.name, shape=(4, 4))
    found = TensorFile(tmp_path / "a.safetensors").torch("a")
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_numpy_gets_numbers_where_it_has_them_and_bits_elsewhere(tmp_path: Path):
    tensors = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([1.0, -2.0], dtype=torch.bfloat16)}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    file = TensorFile(tmp_path / "a.safetensors")
    assert file["a"].tolist() == [1.0, -2.0]
    assert file["b"].tolist() == [0x3F80, 0xC000]
    assert file.entry("b").dtype == "BF16"


def test_it_is_a_mapping_that_includes_aliases(tmp_path: Path):
    with TensorWriter(tmp_path / "a.safetensors") as writer:
        writer.add("a", np.zeros(2, np.float32), dtype="F32", shape=(2,), content_hash=1)
        writer.add("b", np.zeros(2, np.float32), dtype="F32", shape=(2,), content_hash=1)
    file = TensorFile(tmp_path / "a.safetensors")
    assert (list(file), len(file)) == (["a", "b"], 2)
    assert "b" in file
    assert "c" not in file
    assert file.aliases == {"b": "a"}
    assert file.entry("a") == file.entry("b") == TensorEntry(dtype="F32", shape=(2,), begin=112, end=120)
    with pytest.raises(KeyError):
        file["c"]


def test_arrays_are_read_only_and_outlive_the_file(tmp_path: Path):
    safetensors.numpy.save_file({"a": np.arange(5.0)}, tmp_path / "a.safetensors")
    array = TensorFile(tmp_path / "a.safetensors")["a"]
    (tmp_path / "a.safetensors").unlink()
    assert array.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_file_that_is_cut_short_after_it_was_opened_is_an_error_and_not_the_end_of_the_process(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file({"a": np.arange(100_000.0), "b": np.arange(5.0)}, path)
    file = TensorFile(path)
    os.truncate(path, 4096)
    with pytest.raises(RunFolderError, match="'a' was cut short after the file was opened"):
        file["a"]


def test_a_file_cut_off_anywhere_is_named(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    with TensorWriter(path) as writer:
        writer.add("a", np.arange(8, dtype=np.float32), dtype="F32", shape=(8,))
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(RunFolderError, match=r"a\.safetensors' cannot be read"):
            TensorFile(path)


def test_a_header_that_claims_more_than_there_is_is_refused(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(RunFolderError, match="its header claims 9223372036854775808 bytes, and the file has 10"):
        TensorFile(path)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 3},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"a": {"dtype": "F32", "shape": [10**30, 10**30], "data_offsets": [0, 4 * 10**60]}},
        {"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}},
        {"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}},
        {"__metadata__": {"aliases": '{"b": "a"}'}},
        {"__metadata__": {"aliases": "[["}},
        {"__metadata__": {"aliases": '["b"]'}},
        {"__metadata__": 3},
    ],
)
def test_an_invalid_header_is_refused(tmp_path: Path, header: object):
    with pytest.raises(RunFolderError, match=r"a\.safetensors' cannot be read"):
        TensorFile(write_raw(tmp_path / "a.safetensors", header, b"1234"))


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"a\.safetensors' cannot be read"):
        TensorFile(tmp_path / "a.safetensors")
