"""Writes numpy's `.npz`."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from roundoff.checkpoints.checkpoint import StoredTensor


def write_npz(path: Path, tensors: Sequence[StoredTensor]) -> None:
    """Write every tensor as an array of its name; numpy has no bfloat16, which whoever plans must have widened."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for stored in tensors:
            with archive.open(f"{stored.entry.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, stored.read().contiguous().numpy(), allow_pickle=False)
