"""MindSpore's checkpoints give the values that MindSpore had, slices put together, without MindSpore."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError

SAMPLES = Path(__file__).parents[1] / "samples"


def varint(number: int) -> bytes:
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def value(tag: str, shape: list[int], kind: str, content: bytes, *, packed: bool = False) -> bytes:
    sizes = b"".join(map(varint, shape))
    dims = field(1, sizes) if packed else b"".join(varint(1 << 3) + varint(size) for size in shape)
    return field(1, field(1, tag.encode()) + field(2, dims + field(2, kind.encode()) + field(3, content)))


def write(path: Path, *values: bytes) -> Path:
    path.write_bytes(b"".join(values))
    return path


def test_gives_the_values_of_the_reference():
    with np.load(SAMPLES / "ms_tiny_ref.npz") as reference, read_checkpoint(SAMPLES / "ms_tiny.ckpt") as checkpoint:
        assert list(checkpoint.entries) == list(reference)
        for name in reference:
            assert np.array_equal(checkpoint.tensor(name).numpy(), reference[name])


def test_every_dtype_is_torchs_own():
    with read_checkpoint(SAMPLES / "ms_dtypes.ckpt") as checkpoint:
        dtypes = {name: checkpoint.tensor(name).dtype for name in checkpoint.entries}
        assert [dtypes[name] for name in ("h", "b", "i8", "i64", "bo", "f64")] == [
            *(torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.float64)
        ]
        assert checkpoint.tensor("b").tolist() == [0, 1, 2, 3, 4]
        assert checkpoint.tensor("sc").item() == 3.5
        assert checkpoint.settings == {"note": "hello"}


def test_moments_belong_to_the_optimizer_and_counters_to_nothing():
    entries = read_checkpoint(SAMPLES / "ms_opt.ckpt").entries
    assert entries["moments.conv.weight"].role is Role.OPTIMIZER
    assert {name for name, entry in entries.items() if entry.role is Role.OTHER} == {
        *("global_step", "learning_rate", "momentum"),
    }


def test_slices_of_one_tag_are_one_tensor(tmp_path: Path):
    numbers = np.arange(12, dtype=np.float32)
    parts = [value("w", [3, 4], "Float32", numbers[begin : begin + 5].tobytes()) for begin in (0, 5, 10)]
    checkpoint = read_checkpoint(
        write(tmp_path / "a.ckpt", parts[0], value("b", [], "Int32", b"\x01\0\0\0"), *parts[1:])
    )
    assert np.array_equal(checkpoint.tensor("w").numpy(), numbers.reshape(3, 4))


def test_dimensions_may_be_packed(tmp_path: Path):
    path = write(tmp_path / "a.ckpt", value("w", [2, 300], "Int8", bytes(600), packed=True))
    assert read_checkpoint(path).entries["w"].shape == (2, 300)


def test_a_checksum_after_the_protobuf_is_not_part_of_it(tmp_path: Path):
    path = write(tmp_path / "a.ckpt", value("w", [1], "Int8", b"a"), b"crc_num" + (123).to_bytes(10, "big"))
    assert read_checkpoint(path).tensor("w").tolist() == [97]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (value("w", [25_000_000_000], "Float32", bytes(8)), "needs 100000000000 bytes but has 8"),
        (value("w", [2**62, 2**62], "Float32", bytes(8)), "more elements than fit into any memory"),
        (value("w", [1] * 50, "Float32", bytes(4)), "claims 50 dimensions"),
        (value("w", [1] * 1000, "Float32", bytes(4)), "more than 100 fields where few are expected"),
        (value("w", [2], "Float99", bytes(8)), "unknown dtype 'Float99'"),
        (value("w", [2], "Float32", bytes(8))[:-1], "claims .* bytes, but only .* are left"),
        (b"\x0a" + varint(2**63) + b"abc", "claims 9223372036854775808 bytes, but only 3 are left"),
        (b"\x0a" + b"\xff" * 20, "an endless number"),
        (b"\x0a\x02\x0b\x00", "a field of the unknown kind 3"),
        (field(1, field(1, b"w")), "a value has no tag, or no tensor"),
        (value("w", [1], "Int8", b"a") + field(7, b""), "it has a field 7"),
        (value("w", [3], "Int16", b"abc") + value("w", [3], "Int16", b"def"), "slices of 6 bytes"),
        (value("w", [3], "Int8", b"abc") + value("w", [4], "Int8", b"d"), "slices that do not match"),
        (value("a\x07", [1], "Int8", b"a"), r"the name 'a\\x07', which cannot be printed"),
    ],
)
def test_a_protobuf_that_lies_is_refused_with_its_place(content: bytes, why: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=rf"'.*a\.ckpt' cannot be read[^$]*{why}"):
        read_checkpoint(write(tmp_path / "a.ckpt", content))
