import errno
import json
import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import safe_open

from roundoff.errors import RunFolderError
from roundoff.runs import TensorFile, TensorWriter
from roundoff.runs.files import tensor_file
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tensors" / "rank0-step3.safetensors"


def add(writer: TensorWriter, key: str, array: np.ndarray, **options: int) -> None:
    writer.add(key, array, dtype="F32", shape=array.shape, **options)


@pytest.fixture(params=["held in memory", "streamed", "header outgrows its room"])
def small_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    held, reserved = {"held in memory": (2**20, 2**20), "streamed": (100, 2**14)}.get(request.param, (100, 64))
    monkeypatch.setattr(tensor_file, "HELD_BYTES", held)
    monkeypatch.setattr(tensor_file, "RESERVED_BYTES", reserved)


@pytest.mark.usefixtures("small_limits")
def test_the_safetensors_library_reads_what_was_written(path: Path):
    arrays = {f"forward/0/blocks.{i}/aten.mm#0:output0": np.full((3, i), i, np.float32) for i in range(20)}
    with TensorWriter(path) as writer:
        for key, array in arrays.items():
            add(writer, key, array)
    loaded = safetensors.numpy.load_file(path)
    assert loaded.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(loaded[key], array)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("small_limits")
def test_the_same_content_is_stored_once(path: Path):
    ones = np.ones((100,), np.float32)
    with TensorWriter(path) as writer:
        add(writer, "first", ones, content_hash=7)
        add(writer, "again", ones, content_hash=7)
        writer.add("other shape", ones, dtype="F32", shape=(10, 10), content_hash=7)
        writer.add("other dtype", ones, dtype="I32", shape=(100,), content_hash=7)
        add(writer, "unhashed", ones)
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"first", "other shape", "other dtype", "unhashed"}
        assert file.metadata() == {"aliases": '{"again": "first"}'}
    np.testing.assert_array_equal(TensorFile(path)["again"], ones)


def test_streams_without_holding_the_tensors(path: Path):
    block = np.zeros(2**20, np.float32)  # 4 MiB
    tracemalloc.start()
    with TensorWriter(path) as writer:
        for i in range(16):
            add(writer, f"t{i}", block)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size == 8 + 2**20 + 16 * block.nbytes
    assert peak < 20 * 2**20


def test_a_tensor_may_change_as_soon_as_it_was_added(path: Path):
    array = np.ones(4, np.float32)
    with TensorWriter(path) as writer:
        add(writer, "a", array)
        array[:] = 0
    assert TensorFile(path)["a"].tolist() == [1, 1, 1, 1]


def test_takes_arrays_in_any_layout_and_anything_with_bytes(path: Path):
    with TensorWriter(path) as writer:
        writer.add("transposed", np.arange(6, dtype=np.int64).reshape(2, 3).T, dtype="I64", shape=(3, 2))
        writer.add("scalar", np.array(2.5), dtype="F64", shape=())
        writer.add("empty", np.zeros((0, 3), np.float16), dtype="F16", shape=(0, 3))
        writer.add("bytes", b"\x80\x3f", dtype="BF16", shape=(1,))
        writer.add("view", memoryview(bytearray(b"\x01\x00")), dtype="BOOL", shape=(2,))
        writer.add("nothing", b"", dtype="U8", shape=(0,))
    file = TensorFile(path)
    assert file["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (file["scalar"].shape, file["scalar"][()]) == ((), 2.5)
    assert file["empty"].shape == (0, 3)
    assert file["bytes"].tolist() == [0x3F80]
    assert file["view"].tolist() == [True, False]
    assert file["nothing"].shape == (0,)


def test_a_file_without_tensors_is_a_file(path: Path):
    with TensorWriter(path):
        pass
    assert list(TensorFile(path)) == []
    assert safetensors.numpy.load_file(path) == {}


@pytest.mark.usefixtures("small_limits")
def test_a_block_that_fails_leaves_nothing(path: Path):
    def fail() -> None:
        with TensorWriter(path) as writer:
            add(writer, "a", np.zeros(1000, np.float32))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not path.parent.exists() or list(path.parent.iterdir()) == []


def test_until_it_is_complete_only_the_temporary_name_exists(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tensor_file, "HELD_BYTES", 0)
    writer = TensorWriter(path)
    add(writer, "a", np.zeros(10, np.float32))
    (name,) = [p.name for p in path.parent.iterdir()]
    assert re.fullmatch(r"\.rank0-step3\.safetensors\.[0-9a-f]{16}\.tmp", name)
    writer.close()
    assert [p.name for p in path.parent.iterdir()] == ["rank0-step3.safetensors"]
    writer.close()


@pytest.mark.usefixtures("small_limits")
def test_a_full_disk_is_named_and_leaves_nothing(path: Path, full_disk: None):
    path.parent.mkdir()

    def write() -> None:
        with TensorWriter(path) as writer:
            add(writer, "a", np.zeros(10, np.float32))
            add(writer, "b", np.zeros(1000, np.float32))

    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "F32", "shape": (3,)}, r"tensor 'b' has 16 bytes, which is not F32 \[3\]"),
        ({"dtype": "F31", "shape": (4,)}, "tensor 'b' has the unknown dtype 'F31'"),
    ],
)
def test_a_tensor_that_is_not_what_it_says_is_named(path: Path, options, message: str):
    with pytest.raises(ValueError, match=message), TensorWriter(path) as writer:
        writer.add("b", np.zeros(4, np.float32), **options)


def test_a_key_is_used_once(path: Path):
    writer = TensorWriter(path)
    add(writer, "a", np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="tensor 'a' is already in"):
        add(writer, "a", np.zeros(4, np.float32))
