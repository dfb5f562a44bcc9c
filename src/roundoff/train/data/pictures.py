"""Pictures held in memory, and what is done to any batch of pictures on its way to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roundoff.train.data.augment import colour_jitter, mixup, random_crop, random_flip
from roundoff.train.data.batch import Batch, Draw, targets_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What is done to pictures with values from 0 to 1, in this order: augment, normalise, mix."""

    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    gain: float = 1.0
    augment: tuple[str, ...] = ()
    mixup: float = 0.0

    def __call__(self, batch: Batch, draw: Draw) -> Batch:
        """Return the batch as the model gets it."""
        images, random = batch.inputs, draw.generator()
        if "crop" in self.augment:
            images = random_crop(images, random, padding=max(1, images.shape[-1] // 8))
        if "flip" in self.augment:
            images = random_flip(images, random)
        if "jitter" in self.augment:
            images = colour_jitter(images, random)
        batch = batch._replace(inputs=self._normalised(images).contiguous())
        return mixup(batch, random, alpha=self.mixup) if self.mixup else batch

    def _normalised(self, images: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, dtype=images.dtype).view(1, -1, 1, 1)
        std = torch.tensor(self.std, dtype=images.dtype).view(1, -1, 1, 1)
        return (images - mean) * (self.gain / std)


class Pictures:
    """Pictures in memory: bytes, or floats from 0 to 1, (pictures, channels, rows, columns)."""

    def __init__(self, images: Tensor, labels: Tensor, *, prepare: Preparation) -> None:
        self._images, self._labels, self._prepare = images, labels, prepare

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, draw: Draw) -> Batch:
        indices = torch.tensor(draw.indices)
        images = self._images[indices]
        if images.dtype == torch.uint8:
            images = images.to(torch.float32).div_(255)
        return self._prepare(Batch(images, targets_at(self._labels, indices)), draw)
