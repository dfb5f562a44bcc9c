"""A tensor as a file that numpy loads, sent while it is read."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import numpy as np

from roundoff.runs import TensorFile
from roundoff.runs.tensor_dtypes import TENSOR_DTYPES
from roundoff.serve.tensor_look import chunks_of

_DECODED = ("BF16", "F8_")


def npy_chunks(file: TensorFile, key: str) -> Iterator[bytes]:
    """Yield the .npy file of a tensor; what numpy has no dtype for (bfloat16, 8-bit floats) becomes float32."""
    entry = file.entry(key)
    dtype = "<f4" if entry.dtype.startswith(_DECODED) else TENSOR_DTYPES[entry.dtype].numpy
    header = io.BytesIO()
    told = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": entry.shape}
    np.lib.format.write_array_header_1_0(header, told)
    yield header.getvalue()
    for chunk in chunks_of(file, key):
        yield chunk.tobytes()


def npy_name(run: str, key: str) -> str:
    """Return a name for the file that every system takes.

    >>> npy_name("train-1", "forward/0/blocks.3/aten.bmm#0:output0")
    'train-1-forward-0-blocks.3-aten.bmm-0-output0.npy'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{run}-{key}").strip("-.")[:120] + ".npy"
