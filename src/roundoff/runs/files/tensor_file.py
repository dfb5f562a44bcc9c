"""Reads whole tensors from a safetensors file of a run, each when it is requested."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from roundoff.errors import RunFolderError
from roundoff.files import open_reading
from roundoff.runs.files.plain_json import from_json
from roundoff.tensor_header import MAX_HEADER_BYTES, TENSOR_DTYPES, TensorEntry, parse_entries

if TYPE_CHECKING:
    import torch


class TensorFile(Mapping[str, npt.NDArray[Any]]):
    """The tensors of one file by key, as read-only arrays; each is read when it is requested.

    The file is not mapped: one that is cut short meanwhile is an error, not the death of the process.
    bfloat16 and the 8-bit floats, which numpy does not know, come as the uint16 or uint8 of their bits; `entry(key)`
    says what they are, and `torch(key)` gives them as torch tensors.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            with os.fdopen(open_reading(self.path), "rb") as file:
                self._entries, self.aliases = _read_header(file)
        except OSError as error:
            raise _invalid_file_error(self.path, error.strerror or str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise _invalid_file_error(self.path, str(error)) from error

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        array = self._read(key)
        array.flags.writeable = False
        return array

    def _read(self, key: str) -> npt.NDArray[Any]:
        entry = self.entry(key)
        array = np.empty(entry.shape, TENSOR_DTYPES[entry.dtype].numpy)
        try:
            with os.fdopen(open_reading(self.path), "rb") as file:
                file.seek(entry.begin)
                num_read = file.readinto(array.reshape(-1).view(np.uint8).data) if array.size else 0
        except OSError as error:
            raise _invalid_file_error(self.path, error.strerror or str(error)) from error
        if num_read != array.nbytes:
            raise _invalid_file_error(self.path, f"'{key}' was cut short after the file was opened")
        return array

    def __iter__(self) -> Iterator[str]:
        yield from self._entries
        yield from self.aliases

    def __len__(self) -> int:
        return len(self._entries) + len(self.aliases)

    def __contains__(self, key: object) -> bool:
        return key in self._entries or key in self.aliases

    def entry(self, key: str) -> TensorEntry:
        """Return dtype, shape and place of a tensor; a `KeyError` if there is none."""
        return self._entries[self.aliases.get(key, key)]

    def torch(self, key: str) -> torch.Tensor:
        """Return the tensor in its own dtype, on the CPU."""
        import torch

        dtype = getattr(torch, TENSOR_DTYPES[self.entry(key).dtype].torch)
        return torch.from_numpy(self._read(key)).view(dtype)


def _read_header(file: BinaryIO) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise ValueError(f"its header claims {length} bytes, and the file has {size}")
    header: Any = from_json(file.read(length))
    entries, metadata = parse_entries(header, start=8 + length, file_size=size)
    aliases: Any = from_json(metadata.get("aliases", "{}"))
    for alias, key in aliases.items():
        if key not in entries or alias in entries:
            raise ValueError(f"'{alias}' is an alias of '{key}', which is not in the file")
    return entries, aliases


def _invalid_file_error(path: Path, why: str) -> RunFolderError:
    return RunFolderError.explain(f"'{path}' cannot be read.", why=f"{why}.", fix="take it from a copy of the run.")
