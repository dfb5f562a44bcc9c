"""The reference trainer, and a small data set that needs no download."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roundoff.train.digits import load_digits, train_test

if TYPE_CHECKING:
    from roundoff.train.config import TrainConfig as TrainConfig
    from roundoff.train.result import TrainResult as TrainResult
    from roundoff.train.trainer import train as train

_HOMES = {
    "TrainConfig": "roundoff.train.config",
    "TrainResult": "roundoff.train.result",
    "train": "roundoff.train.trainer",
}

__all__ = ["TrainConfig", "TrainResult", "load_digits", "train", "train_test"]


def __getattr__(name: str) -> Any:
    """Import the trainer on first use; the digits do not need it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'roundoff.train' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
