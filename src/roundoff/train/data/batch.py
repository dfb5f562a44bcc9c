"""A batch, the draw it is made from, and what makes the one from the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

IGNORED = -100
"""The target of a place that counts for nothing: padding, or an image that could not be read."""

PADDING = -1
"""The index of a sample that only fills a batch up."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Which samples make a batch, and the seed of everything random about it.

    A batch is a function of its draw alone. So it does not matter which worker makes it, or whether the training was
    interrupted before it.
    """

    indices: tuple[int, ...]
    seed: int = 0

    def generator(self, stream: int = 0) -> np.random.Generator:
        """Return a new random generator for this batch; other streams give other numbers."""
        return np.random.default_rng((self.seed, stream))


class Batch(NamedTuple):
    """The inputs of the model and their targets."""

    inputs: Tensor
    targets: Tensor
    """The class of each image, or the next byte after each byte; `IGNORED` where there is no target."""
    other_targets: Tensor | None = None
    """With mixup, the targets of the images mixed in."""
    share: float = 1.0
    """With mixup, the share of the image that `targets` belongs to."""
    num_unreadable: int = 0
    """The number of images that could not be read; their targets are `IGNORED`."""
    unreadable: str = ""
    """The path of one of them."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        others = None if self.other_targets is None else self.other_targets.to(device, non_blocking=True)
        return self._replace(
            inputs=self.inputs.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            other_targets=others,
        )


class Samples(Protocol):
    """A collection of samples, from which batches are made."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def __getitem__(self, draw: Draw) -> Batch:
        """Return the batch that was drawn."""


def targets_at(targets: Tensor, indices: Tensor) -> Tensor:
    """Return the targets of the drawn samples, `IGNORED` for padding."""
    return torch.where(indices == PADDING, IGNORED, targets[indices])
