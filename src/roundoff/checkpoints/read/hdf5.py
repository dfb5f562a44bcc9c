"""Reads the datasets of an HDF5 file: the HDF5 library finds them in a child process, and they are mapped here.

The library cannot be trusted with hostile files: 5 of 4,000 files with a few changed bytes sent it (2.0) into an
endless loop, which Python code cannot interrupt. In a child process its time and memory are bounded, and a crash is an
ordinary error. It only reports where each dataset is; chunked datasets, which it must decompress, are also read there.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.lazy_tensor import NUM_BYTES, LazyTensor, checked_shape, view_of
from roundoff.checkpoints.read.pickled_objects import TORCH_NAMES, swap_bytes
from roundoff.errors import CheckpointError

NO_END = "the HDF5 library did not finish in time"
CHILD = Path(__file__).with_name("hdf5_child.py")
SECONDS = 10
BYTES_A_SECOND = 20_000_000
"""CPU time of the child process; large files get more."""
WAITING = 12
"""Wall-clock time as a multiple of the CPU time, for busy machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Listing:
    """The contents of an HDF5 file: tensors by path, in creation order, and the names of layers."""

    tensors: dict[str, LazyTensor]
    layers: dict[str, str]
    others: dict[str, str]
    """The dtypes of datasets that are not tensors, by path."""


def list_hdf5(data: FileBytes) -> Hdf5Listing:
    """Describe every dataset of a file; raises a `CheckpointError` if h5py is missing or the file is broken."""
    if importlib.util.find_spec("h5py") is None:
        raise CheckpointError.explain(
            f"'{data.path}' cannot be read.", why="h5py is not installed.", fix="pip install 'roundoff[checkpoints]'"
        )
    answer, _ = _ask(data, None)
    tensors, others = {}, {}
    for dataset in sorted(answer["datasets"], key=lambda dataset: int(dataset["address"])):
        code = dataset["dtype"].lstrip("<>|=")
        if code in TORCH_NAMES:
            tensors[dataset["path"]] = _tensor(data, dataset, TORCH_NAMES[code])
        else:
            others[dataset["path"]] = dataset["dtype"]
    return Hdf5Listing(tensors=tensors, layers=answer["layers"], others=others)


def _tensor(data: FileBytes, dataset: dict[str, Any], dtype: str) -> LazyTensor:
    path, offset = dataset["path"], dataset["offset"]
    what = f"the dataset {path[:100]!r}"
    try:
        shape = checked_shape(dataset["shape"], what)
    except ValueError as error:
        raise data.broken(str(error)) from error
    num_bytes = math.prod(shape) * NUM_BYTES[dtype]
    if offset is not None:
        data.at(offset, num_bytes, what)

    def read() -> Tensor:
        content = data.at(offset, num_bytes, what) if offset is not None else _ask(data, path)[1]
        if len(content) != num_bytes:
            raise data.broken(f"{what} of shape {list(shape)} has {len(content)} bytes")
        flat = view_of(content, dtype)
        return (swap_bytes(flat) if dataset["dtype"].startswith(">") else flat).reshape(shape)

    return LazyTensor(shape=shape, dtype=dtype, read=read)


def _ask(data: FileBytes, dataset: str | None) -> tuple[dict[str, Any], memoryview]:
    """Run the child process for the listing, or for the bytes of one dataset."""
    request = {
        "path": str(data.path.resolve()),
        "begin": data.start,
        "length": len(data),
        "read": dataset,
        "seconds": (seconds := SECONDS + len(data) // BYTES_A_SECOND),
    }
    environment = {
        **os.environ,
        "HDF5_PLUGIN_PRELOAD": "::",  # no plugins
        "HDF5_USE_FILE_LOCKING": "FALSE",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(CHILD), json.dumps(request)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=WAITING * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise data.broken(NO_END) from error
    except OSError as error:
        raise data.broken(f"no child process could be started to read it ({error})") from error
    if done.returncode == -signal.SIGXCPU:
        raise data.broken(NO_END)
    if done.returncode:
        raise data.broken(f"the HDF5 library crashed on it (exit code {done.returncode})")
    line, _, content = done.stdout.partition(b"\n")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise data.broken(f"the HDF5 library reports: {answer['error']}")
    return answer, memoryview(bytearray(content))
