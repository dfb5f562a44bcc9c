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
    """Read images (n, 1, rows, columns) as bytes and their labels as int64; `part` is 'train' or 't10k'."""
    images_path = _find(folder, f"{part}-images-idx3-ubyte")
    labels_path = _find(folder, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(images_path, num_dims=3), read_idx(labels_path, num_dims=1)
    if len(images) != len(labels):
        raise DataError.explain(
            f"'{images_path}' and '{labels_path}' do not belong together.",
            why=f"there are {len(images)} images and {len(labels)} labels.",
        )
    if not len(images):
        raise DataError.explain(f"'{images_path}' contains no images.")
    return images.unsqueeze(1), labels.to(torch.int64)


def read_idx(path: Path, *, num_dims: int) -> Tensor:
    """Read an IDX file of bytes; raises a `DataError` if it is broken.

    Only the bytes that its header declares are read, and one more to check that there are no others.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4)
            if len(header) < 4:
                raise _invalid_file_error(path, "it ends within its header.")
            if header[:2] != b"\0\0" or header[2] != _BYTES or header[3] != num_dims:
                raise _invalid_file_error(path, f"it starts with {header.hex(' ')} instead of 00 00 08 {num_dims:02}.")
            sizes = file.read(4 * num_dims)
            if len(sizes) < 4 * num_dims:
                raise _invalid_file_error(path, "it ends within its header.")
            shape = struct.unpack(f">{num_dims}I", sizes)
            num_bytes = int(np.prod(shape, dtype=object))
            if num_bytes > _MAX_BYTES:
                raise _invalid_file_error(path, f"its header declares {num_bytes:,} bytes.")
            data = file.read(num_bytes + 1)
    except (OSError, EOFError) as error:
        raise _invalid_file_error(path, f"{error}.") from error
    if len(data) != num_bytes:
        found = f"{len(data):,}" if len(data) < num_bytes else "more"
        raise _invalid_file_error(path, f"its header declares {num_bytes:,} bytes, but it has {found}.")
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).reshape(shape).copy())


def _find(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise DataError.explain(f"There is no folder '{folder}'.", fix="pass the folder with the IDX files.")
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError.explain(
        f"'{folder}' has no file '{name}' or '{name}.gz'.",
        why="IDX data has four files: images-idx3-ubyte and labels-idx1-ubyte, with the prefixes train- and t10k-.",
    )


def _invalid_file_error(path: Path, why: str) -> DataError:
    return DataError.explain(f"'{path}' cannot be read.", why=why, fix="download the file again.")
