"""The reference trainer, and a small data set that needs no download."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names
from roundoff.train.digits import load_digits, train_test

if TYPE_CHECKING:
    from roundoff.train.config import TrainConfig as TrainConfig
    from roundoff.train.run_log import TrainResult as TrainResult
    from roundoff.train.trainer import train as train

_HOMES = {
    "TrainConfig": "roundoff.train.config",
    "TrainResult": "roundoff.train.run_log",
    "train": "roundoff.train.trainer",
}

__all__ = ["TrainConfig", "TrainResult", "load_digits", "train", "train_test"]

# The digits do not need the trainer.
__getattr__ = lazy_names(__name__, _HOMES)
