"""IDX files, the form MNIST and its relatives come in, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from roundoff.errors import DataError

_BYTES = 0x08
_MAX_BYTES = 8 * 2**30


def read_idx_pair(folder: Path, *, part: str) -> tuple[Tensor, Tensor]:
    """Read pictures (n, 1, rows, columns) as bytes and their labels as int64; `part` is 'train' or 't10k'."""
    images_path = _find(folder, f"{part}-images-idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, num_dims=3), read_idx(labels_path, num_dims=1)
    if len(images) != len(labels):
        raise DataError.explain(
            f"'{images_path}' and '{labels_path}' do not belong together.",
            why=f"there are {len(images)} pictures and {len(labels)} labels.",
        )
    if not len(images):
        raise DataError.explain(f"'{images_path}' holds no pictures.")
    return images.unsqueeze(1), labels.to(torch.int64)


def read_idx(path: Path, *, num_dims: int) -> Tensor:
    """Read an IDX file of bytes; a `DataError` says what is wrong with it.

    No more is read than its header announces, and one byte to see that there is no more.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4)
            if len(header) < 4 or header[:2] != b"\0\0" or header[2] != _BYTES or header[3] != num_dims:
                raise _broken(path, f"it does not begin with 00 00 08 {num_dims:02}, but with {header.hex(' ')}.")
            sizes = file.read(4 * num_dims)
            if len(sizes) < 4 * num_dims:
                raise _broken(path, "it ends within its header.")
            shape = struct.unpack(f">{num_dims}I", sizes)
            num_bytes = int(np.prod(shape, dtype=object))
            if num_bytes > _MAX_BYTES:
                raise _broken(path, f"its header announces {num_bytes:,} bytes.")
            data = file.read(num_bytes + 1)
    except (OSError, EOFError) as error:
        raise _broken(path, f"{error}.") from error
    if len(data) != num_bytes:
        found = f"{len(data):,}" if len(data) < num_bytes else "more"
        raise _broken(path, f"its header announces {num_bytes:,} bytes, and it holds {found}.")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError.explain(f"There is no folder '{folder}'.", fix="name the folder that holds the IDX files.")
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError.explain(
        f"'{folder}' has no file '{name}' or '{name}.gz'.",
        why="IDX data is four files: train- and t10k-, images-idx3-ubyte and labels-idx1-ubyte.",
    )


def _broken(path: Path, why: str) -> DataError:
    return DataError.explain(f"'{path}' cannot be read.", why=why, fix="get the file again.")
