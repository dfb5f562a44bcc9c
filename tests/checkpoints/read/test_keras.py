"""Files of Keras are named as Keras prints them, in the order of the model, and the HDF5 library is kept at bay."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from roundoff.checkpoints.checkpoint import Role
from roundoff.checkpoints.read import keras
from roundoff.checkpoints.read.dispatch import read_checkpoint
from roundoff.errors import CheckpointError

SAMPLES = Path(__file__).parents[1] / "samples"
NAMES = [
    *("conv2d.kernel", "conv2d.bias"),
    *(f"batch_normalization.{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
    *("dense.kernel", "dense.bias", "optimizer.iteration", "optimizer.learning_rate"),
]


@pytest.mark.parametrize("name", ["keras.weights.h5", "keras_model.keras"])
def test_weights_have_the_names_and_the_order_of_the_model(name: str):
    with read_checkpoint(SAMPLES / name) as checkpoint:
        assert list(checkpoint.entries) == NAMES
        assert checkpoint.entries["conv2d.kernel"].shape == (3, 3, 1, 4)
        assert checkpoint.entries["batch_normalization.moving_mean"].role is Role.BUFFER
        assert checkpoint.entries["optimizer.learning_rate"].role is Role.OPTIMIZER


def test_values_are_those_of_the_file():
    with read_checkpoint(SAMPLES / "keras.weights.h5") as checkpoint, h5py.File(SAMPLES / "keras.weights.h5") as file:
        kernel = file["layers/dense/vars/0"][()]
        assert np.array_equal(checkpoint.tensor("dense.kernel").numpy(), kernel)
    with read_checkpoint(SAMPLES / "keras_model.keras") as archive:
        assert np.array_equal(archive.tensor("dense.kernel").numpy(), kernel)


def write(path: Path, datasets: dict[str, Any], **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, data=value, **options)
    return path


def test_states_of_an_optimizer_are_named_by_its_class(tmp_path: Path):
    kernel, bias = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    datasets = {"layers/dense/vars/0": kernel, "layers/dense/vars/1": bias, "optimizer/vars/0": np.int64(7)}
    datasets |= {"optimizer/vars/1": np.float32(0.1)}
    datasets |= {f"optimizer/vars/{place}": x for place, x in enumerate((kernel, kernel, bias, bias), start=2)}
    weights = write(tmp_path / "model.weights.h5", datasets)
    assert "optimizer.2" in read_checkpoint(weights).entries  # of which class, the weights alone do not say
    with zipfile.ZipFile(tmp_path / "net.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"compile_config": {"optimizer": {"class_name": "Adam"}}}))
        archive.write(weights, "model.weights.h5")
    names = [name for name, entry in read_checkpoint(tmp_path / "net.keras").entries.items() if "optimizer" in name]
    assert names == [
        *("optimizer.iteration", "optimizer.learning_rate"),
        *("optimizer.dense.kernel.exp_avg", "optimizer.dense.kernel.exp_avg_sq"),
        *("optimizer.dense.bias.exp_avg", "optimizer.dense.bias.exp_avg_sq"),
    ]


def test_older_files_spell_their_names(tmp_path: Path):
    datasets = {
        "model_weights/conv/conv/kernel:0": np.ones((3, 3, 1, 2)),
        "model_weights/bn/model/bn/moving_mean:0": np.ones(2),
        "optimizer_weights/Adam/conv/kernel/m:0": np.ones(2),
    }
    entries = read_checkpoint(write(tmp_path / "a.h5", datasets)).entries
    assert {name: entry.role for name, entry in entries.items()} == {
        "conv.kernel": Role.PARAMETER,
        "bn.moving_mean": Role.BUFFER,
        "optimizer_weights.Adam.conv.kernel.m": Role.OPTIMIZER,
    }


@pytest.mark.parametrize("options", [{"chunks": True}, {"compression": "gzip", "shuffle": True}])
def test_datasets_in_chunks_are_unpacked(tmp_path: Path, options: dict[str, Any]):
    values = np.arange(5000.0).reshape(50, 100)
    checkpoint = read_checkpoint(write(tmp_path / "a.h5", {"w": values}, **options))
    assert np.array_equal(checkpoint.tensor("w").numpy(), values)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f2", "<i8", "|u1"])
def test_every_dtype_comes_back(tmp_path: Path, kind: str):
    values = np.arange(6).astype(kind)
    tensor = read_checkpoint(write(tmp_path / "a.h5", {"w": values})).tensor("w")
    assert tensor.tolist() == values.tolist()


def test_texts_are_settings(tmp_path: Path):
    checkpoint = read_checkpoint(write(tmp_path / "a.h5", {"w": np.ones(2), "note": "hello"}))
    assert (list(checkpoint.entries), checkpoint.settings) == (["w"], {"note": "<|O>"})


def test_a_dataset_of_no_size_that_is_no_memory_is_refused(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", shape=(25_000_000_000,), dtype="f4", chunks=(1000,))
    checkpoint = read_checkpoint(tmp_path / "a.h5")
    with pytest.raises(CheckpointError, match="would expand to 100000000000 bytes"):
        checkpoint.tensor("w")


def test_a_dataset_that_lies_in_another_file_is_refused(tmp_path: Path):
    (tmp_path / "secret").write_bytes(bytes(100))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("w", shape=(10,), dtype="f4", external=[(str(tmp_path / "secret"), 0, 40)])
    with pytest.raises(CheckpointError, match="the dataset 'w' lies in another file"):
        read_checkpoint(tmp_path / "a.h5")


def test_links_to_other_files_and_circles_are_not_followed(tmp_path: Path):
    write(tmp_path / "other.h5", {"secret": np.ones(2)})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/w"] = np.ones(2)
        file["group/circle"] = file["group"]
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/secret")
        file["soft"] = h5py.SoftLink("/group/w")
    assert list(read_checkpoint(tmp_path / "a.h5").entries) == ["group.w"]


def test_a_compressed_archive_is_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.keras", "w", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", (SAMPLES / "keras.weights.h5").read_bytes())
    with pytest.raises(CheckpointError, match=r"model.weights.h5 is compressed"):
        read_checkpoint(tmp_path / "a.keras")


@pytest.mark.parametrize("busy", ["import time\ntime.sleep(600)\n", "while True:\n    pass\n"])
def test_a_library_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str):
    limits = "import json, resource, sys\nseconds = json.loads(sys.argv[1])['seconds']\n"
    limits += "resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))\n"
    (tmp_path / "child.py").write_text(limits + busy)
    monkeypatch.setattr(keras, "CHILD", tmp_path / "child.py")
    monkeypatch.setattr(keras, "SECONDS", 1)
    monkeypatch.setattr(keras, "WAITING", 4)
    with pytest.raises(CheckpointError, match="the HDF5 library did not finish in time"):
        read_checkpoint(SAMPLES / "keras.weights.h5")


def test_a_crash_of_the_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    child = tmp_path / "child.py"
    child.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(keras, "CHILD", child)
    with pytest.raises(CheckpointError, match=r"the HDF5 library crashed on it \(exit code -11\)"):
        read_checkpoint(SAMPLES / "keras.weights.h5")


def test_without_h5py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match=r"pip install 'roundoff\[checkpoints\]'"):
        read_checkpoint(SAMPLES / "keras.weights.h5")


def test_one_wrong_byte_that_sends_the_library_round_in_circles_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = bytearray((SAMPLES / "keras.weights.h5").read_bytes())
    data[2216] = 127  # HDF5 2.0 never comes back from it
    (tmp_path / "a.h5").write_bytes(data)
    monkeypatch.setattr(keras, "SECONDS", 2)
    with pytest.raises(CheckpointError, match=r"a.h5' cannot be read as a checkpoint"):
        read_checkpoint(tmp_path / "a.h5")
