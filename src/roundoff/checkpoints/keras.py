"""Keras: HDF5 files of weights, old and new, and `.keras` archives around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.hdf5 import list_hdf5
from roundoff.checkpoints.keras_names import SEED_STATE, keras_names
from roundoff.checkpoints.zip_archive import STORED, ZipArchive

WEIGHTS = "model.weights.h5"


def is_keras_archive(archive: ZipArchive) -> bool:
    """Say whether a zip is what Keras saves a model as."""
    return WEIGHTS in archive


def read_keras(data: FileBytes) -> dict[str, Any]:
    """Return the tensors of an HDF5 file by their names in the model, in the order in which Keras wrote them."""
    listing = list_hdf5(data)
    names = keras_names(list(listing.tensors), listing.layers)
    tensors = {
        names[path]: replace(tensor, role=Role.OTHER) if names[path].endswith(SEED_STATE) else tensor
        for path, tensor in listing.tensors.items()
    }
    return {**tensors, **{path: f"<{dtype}>" for path, dtype in listing.others.items()}}


def read_keras_archive(data: FileBytes, archive: ZipArchive) -> dict[str, Any]:
    """Return the tensors of a `.keras` file, whose weights Keras does not compress."""
    if archive[WEIGHTS].method != STORED:
        raise data.broken(f"{WEIGHTS} is compressed, which Keras does not do", at=archive[WEIGHTS].header)
    return read_keras(archive.stored(WEIGHTS))
