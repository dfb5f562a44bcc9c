"""numpy's `.npy`: one array, mapped."""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import NUM_BYTES, LazyTensor
from roundoff.checkpoints.npz import array_of, read_array_header


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
