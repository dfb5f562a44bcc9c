"""Reads the parameters of any framework's checkpoint, pairs their names, and writes them in another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.checkpoints.checkpoint import Checkpoint as Checkpoint
    from roundoff.checkpoints.read.dispatch import read_checkpoint as read_checkpoint

__all__ = [
    "Checkpoint",
    "read_checkpoint",
]

_HOMES = {
    "Checkpoint": "roundoff.checkpoints.checkpoint",
    "read_checkpoint": "roundoff.checkpoints.read.dispatch",
}

__getattr__ = lazy_names(__name__, _HOMES)
