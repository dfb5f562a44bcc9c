"""Reads numpy arrays: `.npz`, a zip of them, and pickles of them, such as Paddle's `.pdparams` and `.pdopt`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor, join_parts, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickle_machine import unpickle
from roundoff.checkpoints.read.pickled_objects import (
    ARRAY_GLOBALS,
    PLAIN_GLOBALS,
    TORCH_NAMES,
    Global,
    PickledArray,
    in_order,
    swap_bytes,
)
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


INTERNAL_NAMES = "StructuredToParameterName@@"
DIVIDED = "UnpackBigParamInfor@@"
"""The key under which the parts of arrays beyond 4 GB are described."""


def read_paddle(data: FileBytes) -> Any:
    """Return the pickled value, with a `LazyTensor` for each array."""
    tree, _ = unpickle(data, globals=_find_global)
    if not isinstance(tree, dict):
        return tree
    tree.pop(INTERNAL_NAMES, None)
    divided = tree.pop(DIVIDED, None)
    for name, fields in divided.items() if isinstance(divided, dict) else ():
        try:
            tree[name] = _join_parts(tree, fields)
        except ValueError as error:
            raise data.error(str(error)) from error
    return {name: _drop_internal_name(value) for name, value in tree.items()}


def _find_global(module: str, name: str) -> Any:
    return PLAIN_GLOBALS.get((module, name)) or ARRAY_GLOBALS.get((module, name)) or Global(module, name)


def _drop_internal_name(value: Any) -> Any:
    """Replace a tensor given as (internal name, array) by the array."""
    match value:
        case (str(), PickledArray() as array):
            return array
    return value


def _join_parts(tree: dict[Any, Any], fields: Any) -> LazyTensor:
    match fields:
        case {"OriginShape": list() | tuple() as original, "slices": list() | tuple() as names}:
            shape = parse_shape(original, "a chunked array")
            parts = [tree.pop(name, None) for name in names if isinstance(name, str)]
            tensors = [part.tensor for part in parts if isinstance(part, PickledArray) and part.tensor is not None]
            if len({tensor.dtype for tensor in tensors}) != 1 or len(tensors) != len(names):
                raise ValueError("a chunked array lacks a part")
            if sum(math.prod(tensor.shape) for tensor in tensors) != math.prod(shape):
                raise ValueError(f"the parts of a chunked array do not have the shape {list(shape)}")

            def read() -> Tensor:
                return join_parts([tensor.read() for tensor in tensors], shape)

            return LazyTensor(shape=shape, dtype=tensors[0].dtype, read=read)
    raise ValueError("the description of a chunked array is invalid")
