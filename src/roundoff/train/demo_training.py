"""A small half-precision training on the embedded digits, with a fault in it for the demo to find."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from roundoff.train.digits import load_digits

NUM_STEPS = 60
BATCH_SIZE = 64
_WIDTH = 32
_BRIGHT_STEP = 41


class Attention(nn.Module):
    """Self-attention whose logits are scaled too late: the product overflows before it is divided."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the rows of a picture."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        logits = torch.bmm(q, k.transpose(1, 2))
        weights = torch.softmax(logits.float() / _WIDTH**0.5, dim=-1).to(x.dtype)
        mixed: Tensor = self.out(torch.bmm(weights, v))
        return x + mixed


class RowReader(nn.Module):
    """Reads a digit row by row: eight tokens of eight pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, _WIDTH)
        self.attention = Attention()
        self.head = nn.Linear(8 * _WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of logits a digit."""
        tokens = self.attention(self.embed(images.squeeze(1)))
        logits: Tensor = self.head(F.relu(tokens).flatten(1))
        return logits


def train_in_half_precision(after_step: Callable[[int, float], None]) -> None:
    """Train in fp16 on digits whose brightness nobody checked; one batch comes 400 times too bright.

    `after_step` gets the number of each step and its loss.
    """
    torch.manual_seed(0)
    images, labels = load_digits()
    model = RowReader().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(NUM_STEPS):
        chosen = torch.randint(0, len(labels), (BATCH_SIZE,))
        brightness = 400.0 if step == _BRIGHT_STEP else 1.0
        optimizer.zero_grad()
        logits = model((images[chosen] * brightness).half())
        loss = F.cross_entropy(logits.float(), labels[chosen])
        loss.backward()
        optimizer.step()
        after_step(step, loss.item())
