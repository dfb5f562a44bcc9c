"""Flax's msgpack gives nested names and every kind of array; what lies is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.read.flax import read_msgpack
from roundoff.errors import CheckpointError
from tests.checkpoints.checkpoint_samples import flax_bytes

SAMPLES = Path(__file__).parents[1] / "samples"
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(), inner, max_size=20)),
    max_leaves=40,
)


def write(path: Path, tree: Any, **options: Any) -> Path:
    path.write_bytes(flax_bytes(tree, **options))
    return path


def no_extension(kind: int, data: FileBytes) -> Any:
    raise AssertionError(kind)


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_msgpack_is_read_as_its_library_reads_it(value: Any):
    packed = memoryview(msgpack.packb(value))
    assert read_msgpack(FileBytes(Path("a"), packed), extension=no_extension) == value


def test_a_bfloat16_sample_is_read():
    with read_checkpoint(SAMPLES / "flax.msgpack") as checkpoint:
        assert checkpoint.tensor("dense.kernel").tolist() == [[1, 1]] * 3
        assert checkpoint.tensor("dense.bias").dtype == torch.bfloat16


def test_collections_go_and_batch_statistics_are_buffers(tmp_path: Path):
    tree = {
        "params": {"bn": {"scale": np.ones(2, np.float32)}},
        "batch_stats": {"bn": {"mean": np.zeros(2, np.float32)}},
        "opt_state": {"0": {"mu": {"bn": {"scale": np.ones(2, np.float32)}}}},
        "step": 7,
    }
    checkpoint = read_checkpoint(write(tmp_path / "a.msgpack", tree))
    roles = {name: entry.role for name, entry in checkpoint.entries.items()}
    assert roles == {
        "bn.scale": Role.PARAMETER,
        "bn.mean": Role.BUFFER,
        "opt_state.0.mu.bn.scale": Role.OPTIMIZER,
    }
    assert checkpoint.settings == {"step": 7}


@pytest.mark.parametrize("chunk", [1, 5, 24, None])
def test_divided_arrays_are_put_together(tmp_path: Path, chunk: int | None):
    array = np.arange(24.0).reshape(2, 3, 4)
    checkpoint = read_checkpoint(write(tmp_path / "a.msgpack", {"a": {"w": array}}, chunk=chunk))
    assert np.array_equal(checkpoint.tensor("a.w").numpy(), array)


def test_numbers_of_numpy_and_complex_ones_are_settings(tmp_path: Path):
    tree = {"w": np.ones(1), "count": np.int32(5), "rate": np.float32(0.5), "turn": 1 + 2j}
    assert read_checkpoint(write(tmp_path / "a.msgpack", tree)).settings == {"count": 5, "rate": 0.5, "turn": "(1+2j)"}


def extension(kind: int, content: Any) -> bytes:
    return msgpack.packb({"w": msgpack.ExtType(kind, msgpack.packb(content))})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (extension(1, ([25_000_000_000], "float32", bytes(8))), "needs 100000000000 bytes but has 8"),
        (extension(1, ([2], "float99", bytes(8))), "unknown dtype 'float99'"),
        (extension(1, ([2], "float32")), "an invalid array"),
        (extension(3, ([2], "float32", bytes(8))), "at byte"),
        (extension(9, 1), "the unknown extension 9"),
        (b"\x81\xa1w\xdd\xff\xff\xff\xff", "the msgpack claims 1 bytes, but only 0 are left"),
        (b"\x81\xa1w\xc6\xff\xff\xff\xff", "the msgpack claims 4294967295 bytes, but only 0 are left"),
        (b"\x81\xa1w" + b"\x91" * 1000, "too deeply nested"),
        (b"\x81\xa1w\xc1", "the unknown code 0xc1"),
        (b"\x81\xa1w\x00\x00", "there is data after the end"),
        (b"\x82\xa1w\x00\x91\x00\x00", "a key that is not a string"),
        (msgpack.packb({"__msgpack_chunked_array__": True, "w": {"__msgpack_chunked_array__": True}}), "no chunks"),
    ],
)
def test_what_lies_is_refused_with_its_place(content: bytes, why: str, tmp_path: Path):
    (tmp_path / "a.msgpack").write_bytes(content)
    with pytest.raises(CheckpointError, match=why):
        read_checkpoint(tmp_path / "a.msgpack")
