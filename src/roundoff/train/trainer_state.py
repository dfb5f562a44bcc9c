"""Checkpoints of the trainer: everything it needs to continue as if it had never stopped."""

from __future__ import annotations

import os
import pickle
import random
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from roundoff.errors import TrainError, first_line
from roundoff.files import NewFile


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all generators as tensors, numbers and lists, which torch loads without executing code."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert kind == "MT19937", kind
    state: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": [torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the state of all generators."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)


NAME = "checkpoint.pt"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """A training between two steps, as tensors, numbers, strings and lists: loading it executes no code."""

    config: dict[str, Any]
    num_ranks: int
    step: int
    """The next step to be trained, counted from 0 over all epochs."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    """Including the loss scale and the master weights of the recipe."""
    average: dict[str, Any] | None
    random: list[dict[str, Any]]
    """The state of each rank's generators."""
    version: int = VERSION

    def save(self, path: Path) -> None:
        """Write the file atomically: a failure leaves an existing file unchanged."""
        try:
            with NewFile(path) as new, os.fdopen(new.descriptor, "wb", closefd=False) as file:
                # Not `asdict`, which would copy every tensor.
                torch.save({field.name: getattr(self, field.name) for field in fields(self)}, file)
        except OSError as error:
            raise TrainError.explain(
                f"The checkpoint '{path}' cannot be written.",
                why=f"{error.strerror or error}.",
                fix="free some disk space, or use another folder: --runs FOLDER",
            ) from error

    @classmethod
    def load(cls, path: Path) -> TrainerState:
        """Read a checkpoint, or the one in a run folder; raises a `TrainError` if it is not usable."""
        path = path / NAME if path.is_dir() else path
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise TrainError.explain(
                f"There is no checkpoint '{path}'.", fix="pass a run folder or a checkpoint: --resume runs/train-1"
            ) from error
        except pickle.UnpicklingError as error:
            raise TrainError.explain(
                f"'{path}' cannot be read as a checkpoint.",
                why="it is another kind of file, or one that would execute code when it is read.",
                fix="pass a run folder or a checkpoint: --resume runs/train-1",
            ) from error
        except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
            raise TrainError.explain(f"'{path}' cannot be read as a checkpoint.", why=first_line(error)) from error
        names = {field.name for field in fields(cls)}
        if not isinstance(state, dict) or not names <= state.keys():
            raise TrainError.explain(f"'{path}' is not a checkpoint of roundoff train.")
        if state["version"] > VERSION:
            raise TrainError.explain(f"'{path}' was written by a newer roundoff.", fix="pip install --upgrade roundoff")
        return cls(**{name: state[name] for name in names})
