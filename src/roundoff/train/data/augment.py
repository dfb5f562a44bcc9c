"""Small changes to pictures that leave what they show: on whole batches, float, (pictures, channels, rows, columns)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.train.data.batch import Batch

_JITTER = 0.4
_GREY = (0.299, 0.587, 0.114)


def random_crop(images: Tensor, random: np.random.Generator, *, padding: int) -> Tensor:
    """Move every picture by up to `padding` pixels each way; what comes in is black."""
    num, _, height, width = images.shape
    padded = F.pad(images, (padding,) * 4)
    top, left = (torch.from_numpy(random.integers(0, 2 * padding + 1, (num, 1))) for _ in range(2))
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    return padded[torch.arange(num)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, random: np.random.Generator) -> Tensor:
    """Mirror half of the pictures, left to right."""
    chosen = torch.from_numpy(random.random(len(images)) < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(-1), images)


def colour_jitter(images: Tensor, random: np.random.Generator) -> Tensor:
    """Change brightness, contrast and (of colour pictures) saturation, each by a factor within 0.6 and 1.4."""
    images = images * _factors(images, random)
    images = _blend(images, _grey(images).mean((1, 2, 3), keepdim=True), _factors(images, random))
    if images.shape[1] == 3:
        images = _blend(images, _grey(images), _factors(images, random))
    return images.clamp(0, 1)


def mixup(batch: Batch, random: np.random.Generator, *, alpha: float) -> Batch:
    """Mix every picture with another of the batch; its loss is then the same mixture of two losses.

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
