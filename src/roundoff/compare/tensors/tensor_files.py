"""Saved tensors of a folder, a single file or a recorded step, in the order in which they were saved."""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from roundoff.checkpoints.checkpoint import Checkpoint
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import NUM_BYTES, LazyTensor
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.checkpoints.read.npz import array_of, read_array_header
from roundoff.checkpoints.read.safetensors_file import read_safetensors
from roundoff.errors import CompareError
from roundoff.runs import Run


def read_array(path: Path) -> LazyTensor:
    """Describe the array of a file; a `CheckpointError` if it is none, or not one of numbers.

    The file is mapped for as long as a tensor that was read of it lives.
    """
    data = FileBytes.of_file(path)
    header = read_array_header(data, path.name)
    num_bytes = math.prod(header.shape) * NUM_BYTES[header.dtype]
    data.at(header.num_bytes, num_bytes, "the array")

    def read() -> Tensor:
        return array_of(FileBytes.of_file(path).at(header.num_bytes, num_bytes, "the array"), header)

    return LazyTensor(shape=header.shape, dtype=header.dtype, read=read)


SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor, without its values; `read` gets them, as a view of the mapped file where it can."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch calls it."""
    read: Callable[[], Tensor]
    content: str
    """What identifies its values: tensors of one source that share it are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """Tensors in order, and the files that are mapped for them."""

    name: str
    tensors: tuple[SavedTensor, ...]
    files: tuple[FileBytes, ...] = ()

    def let_go(self) -> None:
        """Give back the memory that reading has taken; what is looked at again is read again."""
        for file in self.files:
            mapped = file.view.obj
            if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


def open_tensors(path: Path | str) -> TensorSource:
    """Open a file of tensors, or a folder with such files at any depth, which are sorted as people count: 2 before 10.

    A `CompareError` if there are none, a `CheckpointError` if one is broken; nothing in a file is executed.
    """
    path = Path(path)
    files = _files_in(path) if path.is_dir() else [path]
    opener = _Opener()
    opened = [_open_file(file, "" if file == path else _name_in(path, file), opener) for file in files]
    tensors = tuple(tensor for source in opened for tensor in source.tensors)
    if not tensors:
        raise CompareError.explain(
            f"There are no tensors in '{path}'.",
            why="its files hold none." if files else f"none of its files ends in {', '.join(SUFFIXES)}.",
            fix="save some there: roundoff.save_tensor(name, x, to=...)",
        )
    return TensorSource(name=str(path), tensors=tensors, files=tuple(file for each in opened for file in each.files))


def tensors_of_step(run: Run, step: int, *, rank: int = 0) -> TensorSource:
    """Open the whole tensors of a recorded step in the order of its events; a `RunFolderError` if there are none.

    Names are the keys of the run folder, `phase/microbatch/site/op#n:output0`.
    """
    with run.tensor_file(step, rank=rank) as file:
        source = _open_safetensors(file.path, "")
    columns = ["phase", "microbatch", "site", "op", "nth", "output", "order"]
    events = run.events(step=step, rank=rank, columns=columns).to_pydict()
    rows = zip(*(events[column] for column in columns), strict=True)
    order = {
        f"{phase}/{micro}/{site}/{op}#{nth}:{output}": place for phase, micro, site, op, nth, output, place in rows
    }
    tensors = sorted(source.tensors, key=lambda tensor: order.get(tensor.name, len(order)))
    return replace(source, name=f"{run.path}@{step}", tensors=tuple(tensors))


class _Opener:
    """Opens checkpoints and keeps the last one: their tensors are requested one after another."""

    def __init__(self) -> None:
        self._last: tuple[Path, Checkpoint] | None = None

    def open(self, path: Path) -> Checkpoint:
        if self._last is None or self._last[0] != path:
            self._last = path, read_checkpoint(path)
        return self._last[1]

    def reader(self, path: Path, name: str) -> Callable[[], Tensor]:
        return lambda: self.open(path).tensor(name)


def _files_in(folder: Path) -> list[Path]:
    found = (file for file in folder.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    return sorted(found, key=lambda file: _natural(_name_in(folder, file)))


def _name_in(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Return what a name is sorted by: its numbers as numbers, before words."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def _open_file(path: Path, prefix: str, opener: _Opener) -> TensorSource:
    if path.suffix == ".npy":
        return TensorSource(
            name=str(path), tensors=(_make_saved_tensor(read_array(path), prefix or path.stem, path, ""),)
        )
    if path.suffix == ".safetensors":
        return _open_safetensors(path, prefix)
    entries = opener.open(path).entries.values()
    found = {
        each.name: LazyTensor(shape=each.shape, dtype=each.dtype, read=opener.reader(path, each.name))
        for each in entries
    }
    return TensorSource(name=str(path), tensors=tuple(_make_saved_tensors(found, prefix, path)))


def _open_safetensors(path: Path, prefix: str) -> TensorSource:
    data = FileBytes.of_file(path)
    found = read_safetensors(data)
    metadata = found.pop("__metadata__", {})
    tensors = list(_make_saved_tensors(found, prefix, path))
    by_key = dict(zip(found, tensors, strict=True))
    for alias, key in _aliases(metadata, found):
        tensors.append(replace(by_key[key], name=f"{prefix}/{alias}".lstrip("/")))
    return TensorSource(name=str(path), tensors=tuple(tensors), files=(data,))


def _aliases(metadata: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a run's file that stand for content which another key has."""
    try:
        told = json.loads(metadata.get("aliases", "{}"))
    except (ValueError, TypeError, RecursionError):
        return
    if isinstance(told, dict):
        yield from ((alias, key) for alias, key in told.items() if key in found and alias not in found)


def _make_saved_tensors(found: Mapping[str, LazyTensor], prefix: str, path: Path) -> Iterator[SavedTensor]:
    """Name the tensors of a file; one that is alone in a file of a folder is called like the file."""
    for key, lazy in found.items():
        is_alone = bool(prefix) and len(found) == 1
        yield _make_saved_tensor(lazy, prefix if is_alone else f"{prefix}/{key}".lstrip("/"), path, key)


def _make_saved_tensor(lazy: LazyTensor, name: str, path: Path, key: str) -> SavedTensor:
    return SavedTensor(name=name, shape=lazy.shape, dtype=lazy.dtype, read=lazy.read, content=f"{path}\0{key}")
