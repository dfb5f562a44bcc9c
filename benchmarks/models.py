"""The two nets that every benchmark trains: a ResNet-18-like one and a small GPT."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Add what two convolutions make of `x` to it."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 64x64 pictures: a 3x3 stem without pooling."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1),
                  (256, 512, 2), (512, 512, 1)]  # fmt: skip
        self.blocks = nn.Sequential(*(BasicBlock(*w) for w in widths))
        self.head = nn.Linear(512, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return one row of logits a picture."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class GptBlock(nn.Module):
    """Attention and a two-layer perceptron, each on a normalised copy."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Mix over time, then over channels."""
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        logits = (q @ k.transpose(-1, -2)) / math.sqrt(width // self.heads)
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class Gpt(nn.Module):
    """A GPT of 4 layers and width 256."""

    def __init__(self, vocabulary: int = 1000, width: int = 256, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GptBlock(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits for the next token at every place."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def resnet_step() -> tuple[nn.Module, Callable[[], float]]:
    """Return the ResNet and a function that trains it one step on 32 pictures of 3x64x64."""
    torch.manual_seed(0)
    model = ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    return model, _step(model, optimizer, lambda: F.cross_entropy(model(x), y))


def gpt_step() -> tuple[nn.Module, Callable[[], float]]:
    """Return the GPT and a function that trains it one step on 8 sequences of 128 tokens."""
    torch.manual_seed(0)
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, 1000, (8, 129))
    x, y = ids[:, :-1], ids[:, 1:]
    return model, _step(model, optimizer, lambda: F.cross_entropy(model(x).flatten(0, 1), y.flatten()))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]) -> Callable[[], float]:
    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


STEPS = {"ResNet": resnet_step, "GPT": gpt_step}
