"""Small trainings, each with one thing that can be made different."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LENGTH, NUM_WORDS, BATCH = 32, 2, 16, 40, 4


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is different; the defaults are the reference."""

    norm_eps: float = 1e-5
    attention_scale: float = 1.0
    gelu: str = "none"
    gradient_factor: float = 1.0
    op_factor: float = 1.0
    channel_factor: float = 1.0
    weight_decay: float = 0.01
    beta2: float = 0.999
    foreach: bool = False
    fused_attention: bool = False
    dropout: float = 0.1
    data_seed: int = 3
    seed: int = 4
    model_seed: int = 0
    autocast: torch.dtype | None = None
    num_threads: int = 1
    first_name: str = "fc1"


class Attention(nn.Module):
    def __init__(self, variant: Variant, *, is_odd: bool) -> None:
        super().__init__()
        self.variant, self.scale = variant, variant.attention_scale if is_odd else 1.0
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(variant.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        if self.variant.fused_attention:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)) * (self.scale / math.sqrt(WIDTH // HEADS))
            hidden = ~torch.ones(length, length, dtype=torch.bool).tril()
            y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return self.drop(self.proj(y.transpose(1, 2).reshape(batch, length, WIDTH)))


class Block(nn.Module):
    def __init__(self, variant: Variant, *, is_odd: bool) -> None:
        super().__init__()
        self.variant, self.is_odd = variant, is_odd
        self.ln1 = nn.LayerNorm(WIDTH, eps=variant.norm_eps if is_odd else 1e-5)
        self.attn = Attention(variant, is_odd=is_odd)
        self.ln2 = nn.LayerNorm(WIDTH)
        setattr(self, variant.first_name, nn.Linear(WIDTH, 4 * WIDTH))
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        h = getattr(self, self.variant.first_name)(self.ln2(x))
        if self.is_odd and self.variant.op_factor != 1:
            h = h * self.variant.op_factor
        if self.is_odd and self.variant.channel_factor != 1:
            h = h * torch.ones(4 * WIDTH).index_fill(0, torch.tensor(77), self.variant.channel_factor)
        return x + self.fc2(F.gelu(h, approximate=self.variant.gelu if self.is_odd else "none"))


class Transformer(nn.Module):
    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.emb = nn.Embedding(NUM_WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(variant, is_odd=i == 1) for i in range(3))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def transformer_training(variant: Variant, *, num_steps: int = 2) -> Callable[[], None]:
    """Return the training of a transformer of three blocks; what is odd about it is in the second."""
    torch.manual_seed(variant.model_seed)
    model = Transformer(variant)
    if variant.gradient_factor != 1:
        factor = variant.gradient_factor
        model.blocks[1].fc1.weight.register_hook(lambda gradient: gradient * factor)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        weight_decay=variant.weight_decay,
        betas=(0.9, variant.beta2),
        foreach=variant.foreach,
    )
    generator = torch.Generator().manual_seed(variant.data_seed)
    data = torch.randint(0, NUM_WORDS, (num_steps, BATCH, LENGTH + 1), generator=generator)

    def train() -> None:
        torch.manual_seed(variant.seed)
        with computing(variant):
            for ids in data:
                with autocast(variant):
                    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return train


class Residual(nn.Module):
    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(num_in, num_out, 3, 2, 1), nn.BatchNorm2d(num_out)
        self.conv2, self.norm2 = nn.Conv2d(num_out, num_out, 3, 1, 1), nn.BatchNorm2d(num_out)
        self.short = nn.Conv2d(num_in, num_out, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def picture_training(variant: Variant, *, num_steps: int = 2) -> Callable[[], None]:
    """Return the training of convolutions with biases before batch norms, whose gradients are nothing but rounding."""
    torch.manual_seed(variant.model_seed)
    model = nn.Sequential(Residual(3, 8), Residual(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=variant.foreach)
    generator = torch.Generator().manual_seed(variant.data_seed)
    pictures = torch.randn(num_steps, 8, 3, 16, 16, generator=generator)
    labels = torch.randint(0, 10, (num_steps, 8), generator=generator)

    def train() -> None:
        with computing(variant):
            for x, y in zip(pictures, labels, strict=True):
                with autocast(variant):
                    loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return train


def autocast(variant: Variant) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", dtype=variant.autocast) if variant.autocast else contextlib.nullcontext()


@contextlib.contextmanager
def computing(variant: Variant) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(variant.num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
