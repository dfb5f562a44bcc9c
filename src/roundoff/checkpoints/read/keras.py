"""Reads Keras: HDF5 files of weights, old and new, and `.keras` archives, with the names that Keras prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.hdf5 import list_hdf5
from roundoff.checkpoints.read.zip_archive import STORED, ZipArchive

SEED_STATE = "seed_generator_state"

VARIABLES = {
    "dense": ("kernel", "bias"),
    "einsum_dense": ("kernel", "bias"),
    "conv": ("kernel", "bias"),
    "embedding": ("embeddings",),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"),
    "group_normalization": ("gamma", "beta"),
    "rms_normalization": ("scale",),
    "prelu": ("alpha",),
    "lstm_cell": ("kernel", "recurrent_kernel", "bias"),
    "gru_cell": ("kernel", "recurrent_kernel", "bias"),
    "simple_rnn_cell": ("kernel", "recurrent_kernel", "bias"),
    "seed_generator": (SEED_STATE,),
}
"""The variables of Keras layers in the order of their numbers, by the class of the layer in lower case."""

WITHOUT = {
    ("batch_normalization", 3): ("beta", "moving_mean", "moving_variance"),
    ("batch_normalization", 2): ("moving_mean", "moving_variance"),
}
"""Layers without some of them; if a norm has only one trainable variable, the scale is missing."""

_CONVOLUTION = re.compile(r"(depthwise_)?conv[123]d(_transpose)?")


def keras_names(paths: Sequence[str], layers: Mapping[str, str]) -> dict[str, str]:
    """Return the name of every dataset in the model, as Keras prints it; `layers` are the names of groups of variables.

    >>> keras_names(["layers/conv2d_1/vars/0"], {"layers/conv2d_1/vars": "stem"})
    {'layers/conv2d_1/vars/0': 'stem.kernel'}
    >>> keras_names(["model_weights/dense/model/dense/kernel:0"], {})
    {'model_weights/dense/model/dense/kernel:0': 'dense.kernel'}
    """
    held: dict[str, int] = {}
    for path in paths:
        group = path.rpartition("/")[0]
        held[group] = held.get(group, 0) + 1
    names = {path: _name_of_numbered(path, layers, held) or _name_of_old_file(path) for path in paths}
    return names if len(set(names.values())) == len(names) else {path: path.replace("/", ".") for path in paths}


def _name_of_numbered(path: str, layers: Mapping[str, str], held: Mapping[str, int]) -> str | None:
    """Return the name of a variable of Keras 3, GROUP/vars/NUMBER."""
    group, _, number = path.rpartition("/")
    if not (group == "vars" or group.endswith("/vars")) or not number.isdecimal():
        return None
    parts = group.split("/")[:-1]
    words = [
        layers.get("/".join([*parts[: place + 1], "vars"]), part) if _is_layer(parts, place) else part
        for place, part in enumerate(parts)
        if part != "layers"
    ]
    kinds = [_kind(word) for word in (*parts[-1:], layers.get(group, ""))]
    variables = next((found for kind in kinds if (found := _variables(kind, held[group]))), ())
    place = int(number) if len(number) < 9 else len(variables)
    return ".".join([*words, variables[place] if place < len(variables) else number])


def _is_layer(parts: Sequence[str], place: int) -> bool:
    return place > 0 and parts[place - 1] == "layers"


def _kind(word: str) -> str:
    kind = re.sub(r"_\d+$", "", word)
    return "conv" if _CONVOLUTION.fullmatch(kind) else kind


def _variables(kind: str, count: int) -> tuple[str, ...]:
    known = VARIABLES.get(kind, ())
    return WITHOUT.get((kind, count), known) if count <= len(known) else ()


def _name_of_old_file(path: str) -> str:
    """Return the name of a weight in older files, [model_weights/]LAYER/[MODEL/]LAYER/WEIGHT:0."""
    words = path.removesuffix(":0").split("/")
    if len(words) > 1 and words[0] == "model_weights":
        words.pop(0)
    last = max(place for place, word in enumerate(words) if word == words[0])
    return ".".join(words[last:] if last < len(words) - 1 else words)


WEIGHTS = "model.weights.h5"


def is_keras_archive(archive: ZipArchive) -> bool:
    """Return whether a zip is a model saved by Keras."""
    return WEIGHTS in archive


def read_keras(data: FileBytes) -> dict[str, Any]:
    """Return the tensors of an HDF5 file by their names in the model, in the order of the file."""
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
