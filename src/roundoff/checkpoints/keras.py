"""Keras: HDF5 files of weights, old and new, and `.keras` archives around them."""

from __future__ import annotations

from typing import Any

from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.zip_archive import ZipArchive

WEIGHTS = "model.weights.h5"


def is_keras_archive(archive: ZipArchive) -> bool:
    """Say whether a zip is what Keras saves a model as."""
    return WEIGHTS in archive


def read_keras(data: FileBytes) -> dict[str, Any]:
    """Return the tensors of an HDF5 file by their names in the model."""
    raise data.broken("files of Keras are not read yet")


def read_keras_archive(data: FileBytes, archive: ZipArchive) -> dict[str, Any]:
    """Return the tensors of a `.keras` file."""
    raise data.broken("files of Keras are not read yet")
