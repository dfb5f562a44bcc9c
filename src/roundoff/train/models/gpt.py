"""A small GPT, a transformer that predicts the next byte, with one MLP per block or with several experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_NUM_BLOCKS = 4
_HEAD_WIDTH = 32
_NUM_CHOSEN = 2


class CausalAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over the positions of a (batch, positions, width) tensor."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Experts(nn.Module):
    """A mixture of experts: a router sends every position to two of several MLPs and weights their results.

    There is no loss that balances the load: at this size all experts are used without it.
    """

    def __init__(self, width: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(_mlp(width, 2 * width) for _ in range(num_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same shape."""
        rows = x.reshape(-1, x.shape[-1])
        logits, chosen = self.router(rows).topk(_NUM_CHOSEN, dim=-1)
        weights = logits.softmax(-1)
        result = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            row, nth = (chosen == number).nonzero(as_tuple=True)
            part = expert(rows[row]) * weights[row, nth, None]
            result = result.index_add(0, row, part.to(result.dtype))
        return result.view_as(x)


def _mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Block(nn.Module):
    """Attention, then an MLP or experts, both with a norm before and a residual connection around them."""

    def __init__(self, width: int, num_heads: int, num_experts: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = CausalAttention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Experts(width, num_experts) if num_experts else _mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same shape."""
        x = x + self.attn(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """Four blocks between an embedding and a linear head: 0.86 million parameters at width 128.

    With `num_experts` each block has that many MLPs of half the size, of which every position uses two.
    """

    def __init__(self, *, vocabulary: int, context: int, width: int, num_experts: int = 0) -> None:
        super().__init__()
        num_heads = max(1, width // _HEAD_WIDTH)
        width = math.ceil(width / num_heads) * num_heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, num_heads, num_experts) for _ in range(_NUM_BLOCKS))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        _initialise(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return one row of logits for every position of (batch, positions)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _initialise(model: GPT) -> None:
    """Initialise weights as GPT-2 does: small, and smaller before residual connections."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            std = 0.02 / math.sqrt(2 * _NUM_BLOCKS) if _is_before_a_sum(name) else 0.02
            nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _is_before_a_sum(name: str) -> bool:
    """Whether a weight is the last one before a residual connection."""
    return name.endswith("attn.out.weight") or (".mlp." in name and name.endswith(".2.weight"))
