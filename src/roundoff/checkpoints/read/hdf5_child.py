"""Reads an HDF5 file, as a script in a child process that may be killed (see hdf5.py).

    python -P hdf5_child.py '{"path": ..., "begin": ..., "length": ..., "read": null or the name of a dataset,
        "seconds": ...}'

Prints one line of JSON, followed by the bytes of the requested dataset. It follows hard links only, but neither
external files nor virtual datasets, with which a checkpoint could read other files.
"""

from __future__ import annotations

import io
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

MAX_OBJECTS = 100_000
MAX_DEPTH = 60
MAX_TEXT = 300
MAX_UNPACKED_BYTES = 64 * 2**20
MAX_RATIO = 100
"""A compressed dataset may expand to 64 MB, or to a hundred times the size of its file."""


class FilePart(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path: Path, begin: int, length: int) -> None:
        self._file = path.open("rb")
        self._begin, self._length, self._position = begin, length, 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._position = offset + (0, self._position, self._length)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read on."""
        wanted = max(0, min(len(buffer), self._length - self._position))
        self._file.seek(self._begin + self._position)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def walk(group: Any, path: str, seen: set[int], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield everything below a group with its path; objects with several links only once."""
    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            continue
        found = group[name]
        address = h5py.h5o.get_info(found.id).addr
        if address in seen:
            continue
        seen.add(address)
        if len(seen) > MAX_OBJECTS or depth > MAX_DEPTH:
            raise ValueError("it has too many or too deeply nested objects")
        yield f"{path}{name}", found
        if isinstance(found, h5py.Group):
            yield from walk(found, f"{path}{name}/", seen, depth + 1)


def describe(path: str, found: Any) -> dict[str, Any]:
    """Describe a dataset, with the place of its bytes if they are contiguous."""
    plan = found.id.get_create_plist()
    if plan.get_external_count() or plan.get_layout() == h5py.h5d.VIRTUAL:
        raise ValueError(f"the dataset '{path[:100]}' lies in another file")
    is_plain = plan.get_layout() == h5py.h5d.CONTIGUOUS
    return {
        "path": path,
        "address": h5py.h5o.get_info(found.id).addr,
        "shape": list(found.shape or ()),
        "dtype": found.dtype.str,
        "offset": found.id.get_offset() if is_plain else None,
    }


def listing(file: Any) -> dict[str, Any]:
    """Describe every dataset, and name every layer."""
    datasets, layers = [], {}
    for path, found in walk(file, "", set()):
        if isinstance(found, h5py.Dataset):
            datasets.append(describe(path, found))
        elif isinstance(name := found.attrs.get("name"), str) and name:  # what Keras calls the layer of a group
            layers[path] = name[:MAX_TEXT]
    return {"datasets": datasets, "layers": layers}


def content(file: Any, path: str, length: int) -> bytes:
    """Read and decompress one dataset."""
    found = file[path]
    describe(path, found)
    if found.nbytes > max(MAX_UNPACKED_BYTES, MAX_RATIO * length):
        raise ValueError(f"the dataset '{path[:100]}' would expand to {found.nbytes} bytes")
    return found[()].tobytes()  # type: ignore[no-any-return]


def main() -> None:
    """Answer the request in the arguments."""
    request = json.loads(sys.argv[1])
    path, begin, length = Path(request["path"]), request["begin"], request["length"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"] + 1))
    limit = 2**30 + (1 + MAX_RATIO // 50) * length
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    data = b""
    try:
        whole = begin == 0 and length == path.stat().st_size
        with h5py.File(path if whole else FilePart(path, begin, length), "r") as file:
            answer = listing(file) if request["read"] is None else {}
            data = content(file, request["read"], length) if request["read"] is not None else b""
    except Exception as error:  # errors of the library about a broken file are passed on
        answer = {"error": str(error).partition("\n")[0][:MAX_TEXT] or type(error).__name__}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + data)


if __name__ == "__main__":
    main()
