"""The loss that a training minimises, and the accuracy of a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from roundoff.train.data import IGNORED, Batch


def loss_of(logits: Tensor, batch: Batch, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """Return the cross entropy of a batch in fp32, over the targets that are not `IGNORED`; 0 if all are.

    With mixup it is the mixture of the losses for both targets.
    """
    rows = _rows(logits)

    def total(targets: Tensor) -> Tensor:
        return F.cross_entropy(
            rows, targets.flatten(), ignore_index=IGNORED, label_smoothing=label_smoothing, reduction="sum"
        )

    loss = total(batch.targets)
    if batch.other_targets is not None:
        loss = batch.share * loss + (1 - batch.share) * total(batch.other_targets)
    return loss if reduction == "sum" else loss / num_targets(batch).clamp(min=1)


def num_targets(batch: Batch) -> Tensor:
    """Return the number of targets that are not `IGNORED`."""
    return (batch.targets != IGNORED).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The accuracy of a model, from 0 to 1, and its mean loss."""

    top1: float
    top5: float
    loss: float
    num_places: int
    """The number of images, or of bytes of text."""

    @property
    def perplexity(self) -> float:
        """E to the power of the loss."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def tally(logits: Tensor, batch: Batch) -> Tensor:
    """Return (targets, loss, top-1 hits, top-5 hits) of a batch as sums in fp64, to be added over batches and ranks.

    A row of logits with a non-finite value counts as wrong.
    """
    rows, targets = _rows(logits), batch.targets.flatten()
    loss = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction="sum")
    best = rows.topk(min(5, rows.shape[-1]), dim=-1).indices
    hits = (best == targets[:, None]) & rows.isfinite().all(-1, keepdim=True)
    sums = [(targets != IGNORED).sum(), loss, hits[:, 0].sum(), hits.any(-1).sum()]
    return torch.stack([value.to(torch.float64) for value in sums])


def score_from(sums: Tensor) -> Score:
    """Return the score from the sums over all batches and ranks."""
    places, loss, right, among_five = sums.tolist()
    count = max(1.0, places)
    return Score(top1=right / count, top5=among_five / count, loss=loss / count, num_places=int(places))


def _rows(logits: Tensor) -> Tensor:
    return logits.flatten(0, -2).float()
