"""PyTorch's own files: a zip with one pickle and one member for each storage, which is mapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.pickle_machine import unpickle
from roundoff.checkpoints.torch_pickle import Storage, describe_storage, find_torch_global
from roundoff.checkpoints.zip_archive import ZipArchive

PICKLE = "data.pkl"


def pickle_member(archive: ZipArchive) -> str | None:
    """Name the member that holds the pickle, FOLDER/data.pkl; None if the zip is no file of torch's."""
    return next((name for name in archive if name == PICKLE or name.endswith(f"/{PICKLE}")), None)


def read_torch_zip(data: FileBytes, archive: ZipArchive | None = None) -> Any:
    """Return what `torch.save` was given, with a `LazyTensor` for each tensor."""
    archive = archive or ZipArchive(data)
    name = pickle_member(archive)
    if name is None:
        raise data.broken(f"the zip has no member {PICKLE}")
    folder = name.removesuffix(PICKLE)
    _check_byte_order(archive, folder)
    tree, _ = unpickle(
        archive.stored(name), globals=find_torch_global, persistent=_Storages(archive, folder).of_reference
    )
    return tree


def _check_byte_order(archive: ZipArchive, folder: str) -> None:
    name = f"{folder}byteorder"
    if name in archive and bytes(archive.stored(name).view[:10]) != b"little":
        raise archive.data.broken("it was saved on a big-endian machine, whose byte order is not read")


class _Storages:
    """The storages of one file; those that several tensors share are looked up once."""

    def __init__(self, archive: ZipArchive, folder: str) -> None:
        self._archive = archive
        self._folder = folder
        self._known: dict[Any, Storage] = {}

    def of_reference(self, reference: Any) -> Storage:
        storage = describe_storage(reference, self._find)
        return self._known.setdefault((reference[2], storage.dtype, storage.num_elements), storage)

    def _find(self, key: str, num_bytes: int) -> Callable[[], memoryview]:
        name = f"{self._folder}data/{key}"
        if name not in self._archive:
            raise ValueError(f"the storage {key[:40]!r} is not in the zip")
        if (there := self._archive[name].num_bytes) < num_bytes:
            raise ValueError(f"the storage {key[:40]!r} claims {num_bytes} bytes and has {there}")
        return lambda: self._archive.stored(name).view
