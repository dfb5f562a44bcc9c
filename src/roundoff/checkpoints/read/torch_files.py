"""Reads PyTorch's files: zips of a pickle and its storages, and the files of before 1.6, several pickles in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import MAX_REPEATED_BYTES, NUM_BYTES, LazyTensor, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickle_machine import unpickle
from roundoff.checkpoints.read.pickled_objects import ARRAY_GLOBALS, PLAIN_GLOBALS, Global, Known, PickledObject
from roundoff.checkpoints.read.zip_archive import ZipArchive
from roundoff.tensor_header import MAX_ELEMENTS, parse_shape

if TYPE_CHECKING:
    from torch import Tensor

STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "UntypedStorage": "uint8",
}
"""The dtypes of storage classes; quantized ones are read as integers, without scale and zero point."""


@dataclass(frozen=True, slots=True)
class DtypeName:
    """A dtype that a pickle names."""

    name: str


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one or more tensors: its size, its dtype, and how to read its bytes."""

    dtype: str
    num_elements: int
    bytes: Callable[[], FileBytes]

    @property
    def num_bytes(self) -> int:
        """The number of bytes it must have."""
        return self.num_elements * NUM_BYTES[self.dtype]


def describe_storage(reference: Any, find: Callable[[str, int], Callable[[], FileBytes]]) -> Storage:
    """Make a storage from ('storage', class, key, device, count); `find` takes its key and its number of bytes."""
    match reference:
        case ("storage", DtypeName(name=dtype), str() as key, _, int() as count, *_) if 0 <= count < 2**60:
            return Storage(dtype, count, find(key, count * NUM_BYTES[dtype]))
    raise ValueError("the pickle refers to something that is not a storage")


def find_torch_global(module: str, name: str) -> Any:
    """Return the stand-in for a name in a torch pickle; unknown names give a `Global`."""
    if module in ("torch", "torch.cuda", "torch.storage") and name in STORAGE_DTYPES:
        return DtypeName(STORAGE_DTYPES[name])
    if module == "torch" and name in NUM_BYTES:
        return DtypeName(name)
    return TORCH_GLOBALS.get((module, name)) or Global(module, name)


def _tensor(arguments: tuple[Any, ...], *, dtype: str | None = None) -> LazyTensor:
    match arguments:
        case (Storage() as storage, int() as offset, tuple() as size, tuple() as stride, *_):
            return strided_tensor(storage, dtype or storage.dtype, offset, size, stride)
    raise ValueError("a tensor is made from something that is not a storage")


def strided_tensor(
    storage: Storage, dtype: str, offset: int, size: tuple[Any, ...], stride: tuple[Any, ...]
) -> LazyTensor:
    """Describe the part of a storage that a tensor uses; raises a `ValueError` if it exceeds the storage."""
    shape = parse_shape(size)
    steps = tuple(step for step in stride if type(step) is int and 0 <= step < MAX_ELEMENTS)
    if not len(shape) == len(steps) == len(stride) or offset < 0:
        raise ValueError(f"a tensor of shape {list(shape)} has invalid strides or an invalid offset")
    available = storage.num_bytes // NUM_BYTES[dtype]
    needed = offset + 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) if all(shape) else 0
    if needed > available:
        raise ValueError(f"a tensor of shape {list(shape)} needs {needed} elements but its storage has {available}")
    if math.prod(shape) * NUM_BYTES[dtype] > max(MAX_REPEATED_BYTES, storage.num_bytes):
        raise ValueError(f"a tensor of shape {list(shape)} repeats a storage of {available} elements")

    def read() -> Tensor:
        size, begin = NUM_BYTES[dtype], offset if all(shape) else 0
        data = storage.bytes().part(begin * size, (needed - begin) * size, "a tensor")
        return read_flat(data, dtype).as_strided(shape, steps)

    return LazyTensor(shape=shape, dtype=dtype, read=read)


def _tensor_with_dtype(arguments: tuple[Any, ...]) -> LazyTensor:
    """Do what `_rebuild_tensor_v3` does: (storage, offset, size, stride, requires_grad, hooks, dtype, ...)."""
    match arguments:
        case (_, _, _, _, _, _, DtypeName(name=dtype), *_):
            return _tensor(arguments, dtype=dtype)
    raise ValueError("a tensor has no dtype")


def _of_first(arguments: tuple[Any, ...]) -> Any:
    """Replace a parameter, or a tensor with attributes, by its tensor."""
    match arguments:
        case (LazyTensor() as tensor, *_):
            return tensor
    return PickledObject(made_by=Global("torch", "Tensor"), arguments=arguments)


def _of_type(arguments: tuple[Any, ...]) -> Any:
    """Do what `_rebuild_from_type_v2(function, type, arguments, state)` does, without the class of the tensor."""
    match arguments:
        case (Known() as function, _, tuple() as inner, *_) if function is not OF_TYPE:
            return function.make(inner)
    return PickledObject(made_by=Global("torch", "Tensor"), arguments=arguments)


OF_TYPE = Known(_of_type)

TORCH_GLOBALS: Mapping[tuple[str, str], Any] = {
    **PLAIN_GLOBALS,
    **ARRAY_GLOBALS,
    ("torch._utils", "_rebuild_tensor"): Known(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Known(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Known(_tensor_with_dtype),
    ("torch._utils", "_rebuild_qtensor"): Known(_tensor),
    ("torch_npu.utils.storage", "_rebuild_npu_tensor"): Known(_tensor),
    ("torch._utils", "_rebuild_parameter"): Known(_of_first),
    ("torch._utils", "_rebuild_parameter_with_state"): Known(_of_first),
    ("torch._tensor", "_rebuild_from_type_v2"): OF_TYPE,
    ("torch.nn.parameter", "Parameter"): Known(_of_first),
    ("torch.nn.parameter", "Buffer"): Known(_of_first),
    ("torch", "Size"): Known(lambda arguments: arguments[0] if arguments else ()),
}
"""What pickles of torch call to rebuild tensors. The names are private, but files keep them readable forever."""


LEGACY_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""The pickled magic number at the start of files of before 1.6."""


def read_torch_legacy(data: FileBytes) -> Any:
    """Return the object that was saved, with a `LazyTensor` for each tensor."""
    storages = _LegacyStorages(data)
    position = len(LEGACY_MAGIC)
    protocol, position = unpickle(data, start=position, globals=find_torch_global)
    if protocol != 1001:
        raise data.error(f"the protocol {str(protocol)[:20]} is unknown")
    system, position = unpickle(data, start=position, globals=find_torch_global)
    if not isinstance(system, dict) or system.get("little_endian", True) is not True:
        raise data.error("it was saved on a big-endian machine, which is not supported")
    tree, position = unpickle(data, start=position, globals=find_torch_global, persistent=storages.of_reference)
    keys, position = unpickle(data, start=position, globals=find_torch_global)
    storages.locate(keys, position)
    return tree


class _LegacyStorages:
    """The storages that a pickle names; their places are only known after reading it."""

    def __init__(self, data: FileBytes) -> None:
        self._data = data
        self._storages: dict[str, Storage] = {}
        self._bytes: dict[str, FileBytes] = {}

    def of_reference(self, reference: Any) -> Any:
        """Make a storage from ('storage', class, key, device, count, (view key, offset, count) or None)."""
        match reference:
            case ("module", kind, *_):
                return kind
            case ("storage", DtypeName(name=dtype), str() as key, _, int() as count, view) if 0 <= count < 2**60:
                whole = self._storages.setdefault(key, Storage(dtype, count, lambda: self._bytes[key]))
                if (whole.dtype, whole.num_elements) != (dtype, count):
                    raise ValueError(f"the storage {key[:40]!r} has two sizes")
                return whole if view is None else self._part_of(whole, view)
        raise ValueError("the pickle refers to something that is not a storage")

    def _part_of(self, whole: Storage, view: Any) -> Storage:
        match view:
            case (_, int() as offset, int() as count) if offset >= 0 and 0 <= count <= whole.num_elements - offset:
                size = NUM_BYTES[whole.dtype]
                return Storage(whole.dtype, count, lambda: whole.bytes().part(offset * size, count * size, "a storage"))
        raise ValueError("the pickle uses a part outside its storage")

    def locate(self, keys: Any, position: int) -> None:
        """Find the bytes of every storage: each follows its count, in the order of the keys."""
        if not isinstance(keys, list):
            raise self._data.error("the list of storages is missing", at=position)
        for key in keys:
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None:
                raise self._data.error("the list of storages names one that is not used", at=position)
            count = self._data.number(position, 8, "a storage")
            if count != storage.num_elements:
                raise self._data.error(f"a storage of {storage.num_elements} elements claims {count}", at=position)
            self._bytes[key] = self._data.part(position + 8, storage.num_bytes, "a storage")
            position += 8 + storage.num_bytes
        if missing := self._storages.keys() - self._bytes.keys():
            raise self._data.error(f"{len(missing)} storages are missing", at=position)


PICKLE = "data.pkl"


def pickle_member(archive: ZipArchive) -> str | None:
    """Return the name of the pickle, FOLDER/data.pkl; None if the zip is not a torch file."""
    return next((name for name in archive if name == PICKLE or name.endswith(f"/{PICKLE}")), None)


def read_torch_zip(data: FileBytes, archive: ZipArchive | None = None) -> Any:
    """Return the object that was saved, with a `LazyTensor` for each tensor."""
    archive = archive or ZipArchive(data)
    name = pickle_member(archive)
    if name is None:
        raise data.error(f"the zip has no member {PICKLE}")
    folder = name.removesuffix(PICKLE)
    order = f"{folder}byteorder"
    if order in archive and archive.beginning(order, 10).beginning(10) != b"little":
        raise data.error("it was saved on a big-endian machine, which is not supported")
    tree, _ = unpickle(
        _read_member(archive, name), globals=find_torch_global, persistent=_ZipStorages(archive, folder).of_reference
    )
    return tree


def _read_member(archive: ZipArchive, name: str) -> FileBytes:
    if archive[name].packed_bytes != archive[name].num_bytes:
        archive.data.spend(archive[name].num_bytes)
    return archive.member_bytes(name)


class _ZipStorages:
    """The storages of one file; one that several tensors share is looked up once."""

    def __init__(self, archive: ZipArchive, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._known: dict[Any, Storage] = {}

    def of_reference(self, reference: Any) -> Storage:
        storage = describe_storage(reference, self._find)
        return self._known.setdefault((reference[2], storage.dtype, storage.num_elements), storage)

    def _find(self, key: str, num_bytes: int) -> Callable[[], FileBytes]:
        name = f"{self._folder}data/{key}"
        if name not in self._archive:
            raise ValueError(f"the storage {key[:40]!r} is not in the zip")
        if (there := self._archive[name].num_bytes) < num_bytes:
            raise ValueError(f"the storage {key[:40]!r} claims {num_bytes} bytes but has {there}")
        return lambda: self._archive.member_bytes(name)
