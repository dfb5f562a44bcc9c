"""numpy's `.npz`: a zip of arrays; those that are not compressed are mapped."""

from __future__ import annotations

import math
import re

from torch import Tensor

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import NUM_BYTES, LazyTensor, checked_shape, view_of
from roundoff.checkpoints.pickled_arrays import TORCH_NAMES, in_order, swapped
from roundoff.checkpoints.zip_archive import ZipArchive

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000

_HEADER = re.compile(
    r"\{'descr': '([<>|=]?)([a-zA-Z]\d+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \} *\n?", re.ASCII
)
"""What numpy writes, to the letter; arrays of objects or records look different and hold no tensor."""


def read_npz(data: FileBytes, archive: ZipArchive) -> dict[str, LazyTensor]:
    """Return the arrays of an archive by name."""
    return {name.removesuffix(".npy"): _array(archive, name) for name in archive if name.endswith(".npy")}


def _array(archive: ZipArchive, name: str) -> LazyTensor:
    header = archive.beginning(name, 12 + MAX_HEADER_BYTES)
    if header.at(0, 8, "an array")[:6] != MAGIC:
        raise header.broken(f"{name[:100]!r} is no array", at=0)
    width = 2 if header.view[6] == 1 else 4
    begin = 8 + width
    length = header.number(8, width, "the header of an array")
    text = str(header.at(begin, length, "the header of an array"), "latin-1")
    found = _HEADER.fullmatch(text)
    if found is None or found[2] not in TORCH_NAMES:
        raise header.broken(f"{name[:100]!r} has the header {text[:80]!r}, which is that of no tensor", at=begin)
    order, code, fortran, sizes = found.groups()
    try:
        shape = checked_shape([int(size) for size in sizes.replace(",", " ").split()], f"the array {name[:100]!r}")
    except ValueError as error:
        raise header.broken(str(error), at=begin) from error
    dtype = TORCH_NAMES[code]
    needed, there = math.prod(shape) * NUM_BYTES[dtype], archive[name].num_bytes - begin - length
    if needed != there:
        raise header.broken(f"{name[:100]!r} of shape {list(shape)} needs {needed} bytes and has {there}", at=begin)

    def read() -> Tensor:
        flat = view_of(archive.stored(name).view[begin + length :], dtype)
        return in_order(swapped(flat) if order == ">" else flat, shape, is_fortran=fortran == "True")

    return LazyTensor(shape=shape, dtype=dtype, read=read)
