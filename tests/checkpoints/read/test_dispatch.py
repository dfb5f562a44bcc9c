"""safetensors files give what the library gives; headers that lie are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError


def write(path: Path, header: Any, body: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def test_gives_what_the_library_gives(tmp_path: Path):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)
    saved = {str(dtype): torch.tensor([[0, 1, 1]]).to(dtype) for dtype in dtypes}
    safetensors.torch.save_file(saved, tmp_path / "a.safetensors", metadata={"format": "pt"})
    checkpoint = read_checkpoint(tmp_path / "a.safetensors")
    for name, value in saved.items():
        found = checkpoint.tensor(name)
        assert found.dtype == value.dtype
        assert torch.equal(found.view(torch.uint8), value.view(torch.uint8))
    assert checkpoint.settings == {"__metadata__.format": "pt"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"dtype": "F32", "shape": [25_000_000_000], "data_offsets": [0, 100_000_000_000]},
            "claims 100000000000 bytes",
        ),
        ({"dtype": "F32", "shape": [25_000_000_000], "data_offsets": [0, 8]}, "needs 100000000000 bytes but has 8"),
        ({"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}, "more elements than fit into any memory"),
        ({"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}, "claims 100 dimensions"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "something other than counts"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "something other than counts"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "claims -8 bytes"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, "claims 8 bytes, but only 0 are left"),
        ({"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}, "unknown dtype 'F99'"),
        ({"dtype": "F32", "shape": [2]}, "lacks a dtype, a shape or its place"),
        ("F32", "lacks a dtype, a shape or its place"),
    ],
)
def test_a_tensor_that_lies_is_refused_by_its_name(fields: Any, why: str, tmp_path: Path):
    path = write(tmp_path / "a.safetensors", {"fc.weight": fields}, b"\x00" * 8)
    with pytest.raises(CheckpointError, match=rf"the tensor 'fc.weight' .*{why}.* at byte \d+|{why}"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b'{"a": ' + b"[" * 100_000, "the header is not JSON"),
        (b'{"a": \xff}', "the header is not JSON"),
        (b'{"a": ' + b"1" * 5000 + b"}", "the header is not JSON"),
    ],
)
def test_a_header_that_is_no_json_is_refused(header: bytes, why: str, tmp_path: Path):
    with pytest.raises(CheckpointError, match=f"{why}.* at byte 8"):
        read_checkpoint(write(tmp_path / "a.safetensors", header))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    path.write_bytes((10**6).to_bytes(8, "little") + b'{"a": 1}')
    with pytest.raises(CheckpointError, match="the header claims 1000000 bytes, but only 8 are left at byte 8"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "", "\ud800", "x" * 2000])
def test_names_that_cannot_be_printed_are_refused(name: str, tmp_path: Path):
    path = write(
        tmp_path / "a.safetensors", {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\x00" * 4
    )
    with pytest.raises(
        CheckpointError, match=r"a tensor has (the name .* which cannot be printed|a name of 2000 characters)"
    ):
        read_checkpoint(path)
