"""Reads numpy's `.npz`, a zip of arrays; compressed or not."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickled_objects import TORCH_NAMES, in_order, swap_bytes
from roundoff.checkpoints.read.zip_archive import ZipArchive
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000

_HEADER = re.compile(
    r"\{'descr': '([<>|=]?)([a-zA-Z]\d+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \} *\n?", re.ASCII
)
"""Exactly what numpy writes for tensors; arrays of objects or records have another header."""


def read_npz(data: FileBytes, archive: ZipArchive) -> dict[str, LazyTensor]:
    """Return the arrays of an archive by name."""
    return {name.removesuffix(".npy"): _array(archive, name) for name in archive if name.endswith(".npy")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
    """The header of a saved array."""

    shape: tuple[int, ...]
    dtype: str
    """In torch's names."""
    is_fortran: bool
    is_swapped: bool
    """Whether the bytes of each number are in reverse order."""
    num_bytes: int
    """Size of the header itself."""


def read_array_header(data: FileBytes, name: str) -> ArrayHeader:
    """Read the header that numpy wrote; raises a `CheckpointError` if it is invalid, or not that of a tensor."""
    if data.at(0, 8, "an array")[:6] != MAGIC:
        raise data.error(f"{name[:100]!r} is not an array", at=0)
    width = 2 if data.number(6, 1, "an array") == 1 else 4
    begin = 8 + width
    length = data.number(8, width, "the header of an array")
    text = str(data.at(begin, length, "the header of an array"), "latin-1")
    found = _HEADER.fullmatch(text)
    if found is None or found[2] not in TORCH_NAMES:
        raise data.error(f"{name[:100]!r} has the header {text[:80]!r}, which is not that of a tensor", at=begin)
    order, code, fortran, sizes = found.groups()
    try:
        shape = parse_shape([int(size) for size in sizes.replace(",", " ").split()], f"the array {name[:100]!r}")
    except ValueError as error:
        raise data.error(str(error), at=begin) from error
    return ArrayHeader(
        shape=shape,
        dtype=TORCH_NAMES[code],
        is_fortran=fortran == "True",
        is_swapped=order == ">",
        num_bytes=begin + length,
    )


def read_elements(data: FileBytes, header: ArrayHeader) -> Tensor:
    """Read the elements of an array."""
    flat = read_flat(data, header.dtype)
    return in_order(swap_bytes(flat) if header.is_swapped else flat, header.shape, is_fortran=header.is_fortran)


def _array(archive: ZipArchive, name: str) -> LazyTensor:
    beginning = archive.beginning(name, 12 + MAX_HEADER_BYTES)
    header = read_array_header(beginning, name)
    needed = math.prod(header.shape) * NUM_BYTES[header.dtype]
    there = archive[name].num_bytes - header.num_bytes
    if needed != there:
        why = f"{name[:100]!r} of shape {list(header.shape)} needs {needed} bytes but has {there}"
        raise beginning.error(why, at=header.num_bytes)
    return LazyTensor(
        shape=header.shape,
        dtype=header.dtype,
        read=lambda: read_elements(archive.member_bytes(name).part(header.num_bytes, needed, "the array"), header),
    )
