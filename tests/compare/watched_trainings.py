"""Small trainings under watch, of which one thing can be changed: a transformer and an MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roundoff.runs import Run
from roundoff.watch.watching import watching

NUM_STEPS = 4
BATCH_SIZE = 8


class Block(nn.Module):
    """One block of a transformer."""

    def __init__(self, width: int, *, eps: float, p: float, gelu: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate=gelu), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.dropout(self.mlp(x))


class Transformer(nn.Module):
    """Predicts each token from those around it."""

    def __init__(self, *, eps: float = 1e-5, p: float = 0.1, gelu: str = "none") -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(Block(16, eps=eps, p=p, gelu=gelu) for _ in range(2))
        self.head = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def mlp(*, width: int = 32) -> nn.Module:
    """A network of three layers into 4 classes."""
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, 20, (NUM_STEPS * BATCH_SIZE, 6), generator=torch.Generator().manual_seed(1))
    return ids, ids.roll(1, dims=1)


def numbers() -> tuple[Tensor, Tensor]:
    x = torch.randn(NUM_STEPS * BATCH_SIZE, 8, generator=torch.Generator().manual_seed(1))
    return x, x[:, :4].argmax(dim=1)


def cross_entropy(output: Tensor, target: Tensor, **settings: Any) -> Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten(), **settings)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, and everything about it that can be changed."""

    model: Callable[[], nn.Module] = Transformer
    data: Callable[[], tuple[Tensor, Tensor]] = tokens
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3})
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    seed: int = 0
    order: Callable[[int], Tensor] = torch.arange
    batch_size: int = BATCH_SIZE
    clip: float | None = None
    decay_after: int = 100
    late_zero_grad: bool = False

    def watched(self, folder: Path) -> Run:
        """Train under watch and return the run."""
        torch.manual_seed(self.seed)
        model = self.model()
        optimizer = self.optimizer(model.parameters(), **self.settings)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, self.decay_after)
        inputs, targets = self.data()
        order = self.order(len(inputs))
        with watching(model, optimizer, to=folder):
            for step in range(NUM_STEPS):
                batch = order[torch.arange(step * self.batch_size, (step + 1) * self.batch_size) % len(order)]
                self._step(model, optimizer, inputs[batch], targets[batch])
                scheduler.step()
        return Run.open(folder)

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        if not self.late_zero_grad:
            optimizer.zero_grad()
        loss = self.loss(model(x), y)
        if self.late_zero_grad:
            optimizer.zero_grad()
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
