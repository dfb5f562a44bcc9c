"""Saved tensors of a folder, a file or a recorded step, in the order in which they were saved, and their distances."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, Checkpoint, LazyTensor, StoredTensor
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.dispatch import read_checkpoint, read_safetensors
from roundoff.checkpoints.read.numpy_files import read_array_header, read_elements
from roundoff.compare.tensors.tensor_distance import TensorDistance, measure_distance
from roundoff.errors import CompareError
from roundoff.runs import Run

if TYPE_CHECKING:
    from torch import Tensor


def read_array(path: Path) -> LazyTensor:
    """Describe the array of a file; a `CheckpointError` if there is none, or not one of numbers."""
    data = FileBytes.of_file(path)
    header = read_array_header(data, path.name)
    place = header.num_bytes, math.prod(header.shape) * NUM_BYTES[header.dtype]
    data.part(*place, "the array")

    def read() -> Tensor:  # opened again, since a folder may have more files than a process may have open
        return read_elements(FileBytes.of_file(path).part(*place, "the array"), header)

    return LazyTensor(shape=header.shape, dtype=header.dtype, read=read)


SUFFIXES = (".npy", ".npz", ".pt", ".pth", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSource:
    """Tensors in order."""

    name: str
    tensors: tuple[StoredTensor, ...]


def open_tensors(path: Path | str) -> TensorSource:
    """Open a file of tensors, or a folder with such files at any depth, sorted with numbers in order: 2 before 10.

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
    return TensorSource(name=str(path), tensors=tensors)


def tensors_of_step(run: Run, step: int, *, rank: int = 0) -> TensorSource:
    """Open the whole tensors of a recorded step in the order of its events; a `RunFolderError` if there are none.

    Names are the keys of the run folder, `phase/microbatch/site/op#n:output0`.
    """
    source = _open_safetensors(run.tensor_file(step, rank=rank).path, "")
    columns = ["phase", "microbatch", "site", "op", "nth", "output", "order"]
    events = run.events(step=step, rank=rank, columns=columns)
    rows = zip(*(events[column].to_list() for column in columns), strict=True)
    order = {
        f"{phase}/{micro}/{site}/{op}#{nth}:{output}": place for phase, micro, site, op, nth, output, place in rows
    }
    tensors = sorted(source.tensors, key=lambda tensor: order.get(tensor.name, len(order)))
    return replace(source, name=f"{run.path}@{step}", tensors=tuple(tensors))


class DistanceCache:
    """Measures pairs of tensors, each pair of contents once, with only two tensors in memory."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable[[], Tensor], Callable[[], Tensor]], TensorDistance] = {}

    def between(self, reference: StoredTensor, candidate: StoredTensor) -> TensorDistance:
        """Return how far apart two tensors are that have the same shape, up to dimensions of 1."""
        contents = reference.read, candidate.read
        if contents not in self._known:
            self._known[contents] = measure_distance(reference.read(), candidate.read().reshape(reference.shape))
        return self._known[contents]


class _Opener:
    """Opens checkpoints and keeps the last one, since tensors are requested file by file."""

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
    """Return the sort key of a name: its numbers as numbers, before words."""
    parts = re.split(r"([0-9]+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def _open_file(path: Path, prefix: str, opener: _Opener) -> TensorSource:
    if path.suffix == ".safetensors":
        return _open_safetensors(path, prefix)
    if path.suffix == ".npy":
        tensors = [_with_name(read_array(path), prefix or path.stem)]
    else:
        entries = opener.open(path).entries
        found = {key: StoredTensor.of(entry, opener.reader(path, key)) for key, entry in entries.items()}
        tensors = _with_names(found, prefix)
    return TensorSource(name=str(path), tensors=tuple(tensors))


def _open_safetensors(path: Path, prefix: str) -> TensorSource:
    found = read_safetensors(FileBytes.of_file(path))
    metadata = found.pop("__metadata__", {})
    tensors = _with_names(found, prefix)
    by_key = dict(zip(found, tensors, strict=True))
    for alias, key in _aliases(metadata, found):
        tensors.append(replace(by_key[key], name=f"{prefix}/{alias}".lstrip("/")))
    return TensorSource(name=str(path), tensors=tuple(tensors))


def _aliases(metadata: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a run's file that share the content of another key."""
    try:
        aliases = json.loads(metadata.get("aliases", "{}"))
    except (ValueError, TypeError, RecursionError):
        return
    if isinstance(aliases, dict):
        yield from ((alias, key) for alias, key in aliases.items() if key in found and alias not in found)


def _with_names(found: Mapping[str, LazyTensor], prefix: str) -> list[StoredTensor]:
    """Name the tensors of a file; the only tensor of a file in a folder is named after the file."""
    is_alone = bool(prefix) and len(found) == 1
    return [_with_name(tensor, prefix if is_alone else f"{prefix}/{key}".lstrip("/")) for key, tensor in found.items()]


def _with_name(tensor: LazyTensor, name: str) -> StoredTensor:
    return StoredTensor(name=name, shape=tensor.shape, dtype=tensor.dtype, read=tensor.read)
