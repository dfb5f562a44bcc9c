"""One small checkpoint of every kind: real files of other frameworks, and what torch and numpy write here."""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import safetensors.torch
import torch
from torch import nn

SAMPLES = Path(__file__).parent / "samples"


def trained_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small model after one step of Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 1, 4, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def training_state() -> dict[str, Any]:
    """Return what a training loop saves: a model, its optimizer, settings, and things of other classes."""
    model, optimizer = trained_model()
    return {
        "model": {f"module.{name}": value for name, value in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, layers=[1, 2]),
        "mean": np.arange(6.0).reshape(2, 3).T,
        "best": np.float64(0.75),
    }


def write_samples(folder: Path) -> dict[str, Path]:
    """Put one file or folder of every kind into `folder`; the keys name them."""
    for sample in (path for path in SAMPLES.iterdir() if path.is_file()):
        shutil.copyfile(sample, folder / sample.name)
    state = training_state()
    torch.save(state, folder / "training.pt")
    torch.save(state, folder / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(trained_model()[0], folder / "whole_model.pt")
    np.savez(folder / "arrays.npz", plain=np.arange(6, dtype=np.float32), turned=np.asfortranarray(np.ones((2, 3))))
    np.savez_compressed(folder / "packed.npz", plain=np.arange(600, dtype=">f4"))
    write_sharded(folder / "sharded", trained_model()[0].state_dict())
    write_distributed(folder / "distributed", state)
    (folder / "chunked.msgpack").write_bytes(flax_bytes({"params": {"dense": {"kernel": np.ones((2, 3))}}}, chunk=4))
    return {path.name: path for path in sorted(folder.iterdir())}


def write_sharded(folder: Path, state: dict[str, Any]) -> None:
    """Write every tensor into a file of its own, and an index over them."""
    folder.mkdir()
    files = {name: f"model-{place}.safetensors" for place, name in enumerate(state)}
    for name, file in files.items():
        safetensors.torch.save_file({name: state[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def write_distributed(folder: Path, state: dict[str, Any]) -> None:
    """Let torch write its distributed checkpoint."""
    import torch.distributed.checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = {key: state[key] for key in ("model", "optimizer", "epoch")}
        torch.distributed.checkpoint.save(plain, checkpoint_id=folder)  # type: ignore[attr-defined]


def flax_bytes(tree: Any, *, chunk: int | None = None) -> bytes:
    """Pack a tree as Flax does; arrays of more than `chunk` elements are divided."""
    return msgpack.packb(_packed(tree, chunk), default=_extended)


def _packed(tree: Any, chunk: int | None) -> Any:
    if isinstance(tree, dict):
        return {key: _packed(value, chunk) for key, value in tree.items()}
    if chunk is None or not isinstance(tree, np.ndarray) or tree.size <= chunk:
        return tree
    pieces = {str(place): tree.ravel()[begin : begin + chunk] for place, begin in enumerate(range(0, tree.size, chunk))}
    shape = {str(place): size for place, size in enumerate(tree.shape)}
    return {"__msgpack_chunked_array__": True, "shape": shape, "chunks": pieces}


def _extended(value: Any) -> msgpack.ExtType:
    if isinstance(value, complex):
        return msgpack.ExtType(2, msgpack.packb((value.real, value.imag)))
    array = np.asarray(value)
    content = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
    return msgpack.ExtType(1 if isinstance(value, np.ndarray) else 3, content)
