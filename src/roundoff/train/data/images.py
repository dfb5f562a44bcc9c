"""Images in memory, and the preparation of any batch of images: augmentation, normalisation, mixup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.train.data.batch_loading import Batch, Draw, targets_at

_JITTER = 0.4
_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The preparation of images with values from 0 to 1: augment, normalise, mix."""

    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    gain: float = 1.0
    augment: tuple[str, ...] = ()
    mixup: float = 0.0

    def __call__(self, batch: Batch, draw: Draw) -> Batch:
        """Return the batch as the model receives it."""
        images, random = batch.inputs, draw.generator()
        if "crop" in self.augment:
            images = random_crop(images, random, padding=max(1, images.shape[-1] // 8))
        if "flip" in self.augment:
            images = random_flip(images, random)
        if "jitter" in self.augment:
            images = colour_jitter(images, random)
        batch = batch._replace(inputs=self._normalise(images).contiguous())
        return mixup(batch, random, alpha=self.mixup) if self.mixup else batch

    def _normalise(self, images: Tensor) -> Tensor:
        mean = torch.tensor(self.mean, dtype=images.dtype).view(1, -1, 1, 1)
        std = torch.tensor(self.std, dtype=images.dtype).view(1, -1, 1, 1)
        return (images - mean) * (self.gain / std)


class Images:
    """Images in memory: bytes, or floats from 0 to 1, of shape (images, channels, rows, columns)."""

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


# Augmentation of whole batches of float images (images, channels, rows, columns).


def random_crop(images: Tensor, random: np.random.Generator, *, padding: int) -> Tensor:
    """Shift every image by up to `padding` pixels in each direction; uncovered pixels are black."""
    num, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    top, left = (torch.from_numpy(random.integers(0, 2 * padding + 1, (num, 1))) for _ in range(2))
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    return padded[torch.arange(num)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, random: np.random.Generator) -> Tensor:
    """Mirror half of the images, left to right."""
    chosen = torch.from_numpy(random.random(len(images)) < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def colour_jitter(images: Tensor, random: np.random.Generator) -> Tensor:
    """Change brightness, contrast and (of colour images) saturation, each by a factor between 0.6 and 1.4."""
    images = images * _factors(images, random)
    images = _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), _factors(images, random))
    if images.shape[1] == 3:
        images = _blend(images, _grey(images), _factors(images, random))
    return images.clamp(0, 1)


def mixup(batch: Batch, random: np.random.Generator, *, alpha: float) -> Batch:
    """Mix every image with another of the batch; the loss is then the same mixture of two losses.

    The share is drawn from Beta(alpha, alpha), once for the whole batch.
    """
    share = float(random.beta(alpha, alpha))
    partners = torch.from_numpy(random.permutation(len(batch.inputs)))
    mixed = torch.lerp(batch.inputs[partners], batch.inputs, share)
    return batch._replace(inputs=mixed, other_targets=batch.targets[partners], share=share)


def _factors(images: Tensor, random: np.random.Generator) -> Tensor:
    drawn = random.uniform(1 - _JITTER, 1 + _JITTER, (len(images), 1, 1, 1))
    return torch.from_numpy(drawn).to(images.dtype)


def _blend(images: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    return others + factors * (images - others)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    weights = torch.tensor(_GREY, dtype=images.dtype).view(1, 3, 1, 1)
    return (images * weights).sum(1, keepdim=True)
