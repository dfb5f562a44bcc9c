"""Checkpoints: everything a training needs to go on as if it had never stopped."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from roundoff.errors import TrainError, first_line
from roundoff.runs.atomic import temporary_name

NAME = "checkpoint.pt"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A training between two steps, as tensors, numbers, texts and lists: loading it runs no code."""

    config: dict[str, Any]
    num_ranks: int
    step: int
    """The next step to be trained, counted from 0 over all epochs."""
    model: dict[str, Any]
    optimizer: dict[str, Any]
    """With the loss scale and the master weights, where the recipe has them."""
    average: dict[str, Any] | None
    random: list[dict[str, Any]]
    """The state of each rank's generators."""
    version: int = VERSION

    def save(self, path: Path) -> None:
        """Write the file whole, or leave the one that was there."""
        temporary = temporary_name(path)
        try:
            with temporary.open("wb") as file:
                torch.save(_fields_of(self), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TrainError.explain(
                f"The checkpoint '{path}' cannot be written.",
                why=f"{error.strerror or error}.",
                fix="make room on the disk, or name another folder: --runs FOLDER",
            ) from error

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read a checkpoint, or the one in a run folder; a `TrainError` says what is wrong with it."""
        path = path / NAME if path.is_dir() else path
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError as error:
            raise TrainError.explain(
                f"There is no checkpoint '{path}'.", fix="name a run folder or a checkpoint: --resume runs/train-1"
            ) from error
        except pickle.UnpicklingError as error:
            raise TrainError.explain(
                f"'{path}' cannot be read as a checkpoint.",
                why="it is another kind of file, or one that would run code when it is read.",
                fix="name a run folder or a checkpoint: --resume runs/train-1",
            ) from error
        except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
            raise TrainError.explain(f"'{path}' cannot be read as a checkpoint.", why=first_line(error)) from error
        names = {field.name for field in fields(cls)}
        if not isinstance(state, dict) or not names <= state.keys():
            raise TrainError.explain(f"'{path}' is not a checkpoint of roundoff train.")
        if state["version"] > VERSION:
            raise TrainError.explain(f"'{path}' was written by a newer roundoff.", fix="pip install --upgrade roundoff")
        return cls(**{name: state[name] for name in names})


def _fields_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields as they are; `asdict` would copy every tensor."""
    return {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}
