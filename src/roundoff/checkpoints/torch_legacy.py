"""PyTorch's files of before 1.6: five pickles in a row, and then the storages."""

from __future__ import annotations

from typing import Any

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import NUM_BYTES
from roundoff.checkpoints.pickle_machine import unpickle
from roundoff.checkpoints.torch_pickle import DtypeName, Storage, find_torch_global

MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""A pickle of the number that every such file begins with."""


def read_torch_legacy(data: FileBytes) -> Any:
    """Return what `torch.save` was given, with a `LazyTensor` for each tensor."""
    storages = _Storages(data)
    position = len(MAGIC)
    protocol, position = unpickle(data, start=position, globals=find_torch_global)
    if protocol != 1001:
        raise data.broken(f"the protocol {str(protocol)[:20]} is not known")
    system, position = unpickle(data, start=position, globals=find_torch_global)
    if not isinstance(system, dict) or system.get("little_endian", True) is not True:
        raise data.broken("it was saved on a big-endian machine, whose byte order is not read")
    tree, position = unpickle(data, start=position, globals=find_torch_global, persistent=storages.of_reference)
    keys, position = unpickle(data, start=position, globals=find_torch_global)
    storages.locate(keys, position)
    return tree


class _Storages:
    """The storages a pickle has named, whose places are known only when it has been read."""

    def __init__(self, data: FileBytes) -> None:
        self._data = data
        self._storages: dict[str, Storage] = {}
        self._bytes: dict[str, memoryview] = {}

    def of_reference(self, reference: Any) -> Any:
        """Make a storage of ('storage', class, key, device, count, (view key, offset, count) or None)."""
        match reference:
            case ("module", kind, *_):
                return kind
            case ("storage", DtypeName(name=dtype), str() as key, _, int() as count, view) if 0 <= count < 2**60:
                whole = self._storages.setdefault(key, Storage(dtype, count, lambda: self._bytes[key]))
                if (whole.dtype, whole.num_elements) != (dtype, count):
                    raise ValueError(f"the storage {key[:40]!r} has two sizes")
                return whole if view is None else self._part_of(whole, view)
        raise ValueError("the pickle refers to something that is no storage")

    def _part_of(self, whole: Storage, view: Any) -> Storage:
        match view:
            case (_, int() as offset, int() as count) if offset >= 0 and 0 <= count <= whole.num_elements - offset:
                size = NUM_BYTES[whole.dtype]
                return Storage(whole.dtype, count, lambda: whole.bytes()[offset * size : (offset + count) * size])
        raise ValueError("the pickle looks at a part of a storage that it does not have")

    def locate(self, keys: Any, position: int) -> None:
        """Find the bytes of every storage: each has its count before it, in the order of the keys."""
        if not isinstance(keys, list):
            raise self._data.broken("the list of storages is missing", at=position)
        for key in keys:
            storage = self._storages.get(key) if isinstance(key, str) else None
            if storage is None:
                raise self._data.broken("the list of storages names one that nobody uses", at=position)
            count = self._data.number(position, 8, "a storage")
            if count != storage.num_elements:
                raise self._data.broken(f"a storage of {storage.num_elements} elements claims {count}", at=position)
            self._bytes[key] = self._data.at(position + 8, storage.num_bytes, "a storage")
            position += 8 + storage.num_bytes
        if missing := self._storages.keys() - self._bytes.keys():
            raise self._data.broken(f"{len(missing)} storages are missing", at=position)
