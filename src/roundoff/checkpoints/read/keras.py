"""Reads Keras: HDF5 files of weights, old and new, and `.keras` archives, with the names that Keras prints.

The HDF5 library finds the datasets in a child process, and they are read here: it cannot be trusted with hostile
files. 5 of 4,000 files with a few changed bytes sent it (2.0) into an endless loop, which Python code cannot interrupt.
In a child process its time and memory are bounded, and a crash is an ordinary error. It only reports where each dataset
is; chunked datasets, which it must decompress, are also read there.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundoff.checkpoints.checkpoint import NUM_BYTES, LazyTensor, Role, read_flat
from roundoff.checkpoints.file_bytes import FileBytes
from roundoff.checkpoints.read.pickled_objects import TORCH_NAMES, swap_bytes
from roundoff.checkpoints.read.zip_archive import STORED, ZipArchive
from roundoff.errors import CheckpointError
from roundoff.tensor_header import parse_shape

if TYPE_CHECKING:
    from torch import Tensor

NO_END = "the HDF5 library did not finish in time"
CHILD = Path(__file__).with_name("hdf5_child.py")
SECONDS = 10
BYTES_PER_SECOND = 20_000_000
"""CPU time of the child process; large files get more."""
WAITING = 12
"""Wall-clock time as a multiple of the CPU time, for busy machines."""


SEED_STATE = "seed_generator_state"
_UNTRAINED = (SEED_STATE, "moving_mean", "moving_variance")
WEIGHTS = "model.weights.h5"
CONFIG = "config.json"
MAX_CONFIG_BYTES = 16 << 20


def is_keras_archive(archive: ZipArchive) -> bool:
    """Return whether a zip is a model saved by Keras."""
    return WEIGHTS in archive


def read_keras(data: FileBytes, optimizer: str | None = None) -> dict[str, Any]:
    """Return the tensors of an HDF5 file by their names in the model, in the order of the file.

    `optimizer` is its class, if that is known: the file only numbers its variables.
    """
    listing = list_hdf5(data)
    names = keras_names(list(listing.tensors), listing.layers)
    states = name_optimizer_states({names[path]: x.shape for path, x in listing.tensors.items()}, optimizer)
    names = {path: states.get(name, name) for path, name in names.items()}
    tensors = {
        names[path]: replace(tensor, role=Role.OTHER) if names[path].endswith(SEED_STATE) else tensor
        for path, tensor in listing.tensors.items()
    }
    return {**tensors, **{path: f"<{dtype}>" for path, dtype in listing.others.items()}}


def read_keras_archive(data: FileBytes, archive: ZipArchive) -> dict[str, Any]:
    """Return the tensors of a `.keras` file, whose weights Keras does not compress."""
    if archive[WEIGHTS].method != STORED:
        raise data.error(f"{WEIGHTS} is compressed, which Keras does not do", at=archive[WEIGHTS].header)
    return read_keras(archive.member_bytes(WEIGHTS), _optimizer_class(archive))


_COUNTERS = ("optimizer.iteration", "optimizer.learning_rate")
SLOTS_OF_KERAS = {
    "SGD": ("update",),  # -lr times PyTorch's momentum_buffer, which is another state
    "RMSprop": ("square_avg",),
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
}
"""PyTorch's names of the states that a Keras optimizer keeps for each variable, in the order of their numbers."""


def name_optimizer_states(shapes: Mapping[str, tuple[int, ...]], optimizer: str | None) -> dict[str, str]:
    """Return names for the numbered variables of an optimizer, by its class; empty if they do not fit the model.

    Keras numbers them: a counter, the learning rate, then the states of each trainable variable in turn.

    >>> shapes = {"dense.kernel": (2, 3), "optimizer.0": (), "optimizer.1": (), "optimizer.2": (2, 3)}
    >>> name_optimizer_states(shapes, "SGD")["optimizer.2"]
    'optimizer.dense.kernel.update'
    """
    slots = SLOTS_OF_KERAS.get(optimizer or "", ())
    numbered = [name for name in shapes if re.fullmatch(r"optimizer\.\d{1,8}", name)]
    numbered.sort(key=lambda name: int(name.rpartition(".")[2]))
    trained = [name for name in shapes if not name.startswith("optimizer.") and not name.endswith(_UNTRAINED)]
    wanted = [(name, slot) for name in trained for slot in slots] if len(numbered) > len(_COUNTERS) else []
    first = len(numbered) - len(wanted)
    states = numbered[max(first, 0) :]
    if first not in (1, 2) or any(
        shapes[state] != shapes[name] for state, (name, _) in zip(states, wanted, strict=True)
    ):
        return {}
    counters = dict(zip(numbered[:first], _COUNTERS, strict=False))
    named = {state: f"optimizer.{name}.{slot}" for state, (name, slot) in zip(states, wanted, strict=True)}
    return counters | named


def _optimizer_class(archive: ZipArchive) -> str | None:
    """Return the class of the optimizer that a `.keras` file was compiled with; None if it says none."""
    if CONFIG not in archive or archive[CONFIG].num_bytes > MAX_CONFIG_BYTES:
        return None
    try:
        content = archive.member_bytes(CONFIG)
        config = json.loads(bytes(content.at(0, len(content), CONFIG)))
        name = config["compile_config"]["optimizer"]["class_name"]
    except (ValueError, KeyError, TypeError, RecursionError, CheckpointError):
        return None  # the weights can be read without it
    return name if isinstance(name, str) else None


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
    answer, _ = _run_child(data, None)
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
        shape = parse_shape(dataset["shape"], what)
    except ValueError as error:
        raise data.error(str(error)) from error
    num_bytes = math.prod(shape) * NUM_BYTES[dtype]
    if offset is not None:
        data.part(offset, num_bytes, what)  # raises if the file is shorter

    def read() -> Tensor:
        content = data.part(offset, num_bytes, what) if offset is not None else _run_child(data, path)[1]
        if len(content) != num_bytes:
            raise data.error(f"{what} of shape {list(shape)} has {len(content)} bytes")
        flat = read_flat(content, dtype)
        return (swap_bytes(flat) if dataset["dtype"].startswith(">") else flat).reshape(shape)

    return LazyTensor(shape=shape, dtype=dtype, read=read)


def _run_child(data: FileBytes, dataset: str | None) -> tuple[dict[str, Any], FileBytes]:
    """Run the child process for the listing, or for the bytes of one dataset."""
    request = {
        "path": str(data.path.resolve()),
        "begin": data.start,
        "length": len(data),
        "read": dataset,
        "seconds": (seconds := SECONDS + len(data) // BYTES_PER_SECOND),
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
        raise data.error(NO_END) from error
    except OSError as error:
        raise data.error(f"no child process could be started to read it ({error})") from error
    if done.returncode == -signal.SIGXCPU:
        raise data.error(NO_END)
    if done.returncode:
        raise data.error(f"the HDF5 library crashed on it (exit code {done.returncode})")
    line, _, content = done.stdout.partition(b"\n")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise data.error(f"the HDF5 library reports: {answer['error']}")
    return answer, FileBytes(data.path, memoryview(content), budget=data.budget)


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
        layers.get("/".join([*parts[: place + 1], "vars"]), part) if place and parts[place - 1] == "layers" else part
        for place, part in enumerate(parts)
        if part != "layers"
    ]
    kinds = [_kind(word) for word in (*parts[-1:], layers.get(group, ""))]
    count = held[group]
    known = next((kind for kind in kinds if VARIABLES.get(kind) and count <= len(VARIABLES[kind])), "")
    variables = WITHOUT.get((known, count), VARIABLES.get(known, ()))
    place = int(number) if len(number) < 9 else len(variables)
    return ".".join([*words, variables[place] if place < len(variables) else number])


def _kind(word: str) -> str:
    kind = re.sub(r"_\d+$", "", word)
    return "conv" if _CONVOLUTION.fullmatch(kind) else kind


def _name_of_old_file(path: str) -> str:
    """Return the name of a weight in older files, [model_weights/]LAYER/[MODEL/]LAYER/WEIGHT:0."""
    words = path.removesuffix(":0").split("/")
    if len(words) > 1 and words[0] == "model_weights":
        words.pop(0)
    last = max(place for place, word in enumerate(words) if word == words[0])
    return ".".join(words[last:] if last < len(words) - 1 else words)
