"""Attention over padded sentences, one of which has no word at all."""

import torch
import torch.nn.functional as F
from torch import nn


class Pooling(nn.Module):
    """Attention with one query, over the words that are there."""

    def __init__(self, width):
        super().__init__()
        self.key = nn.Linear(width, width)
        self.query = nn.Parameter(torch.randn(width) / width**0.5)

    def forward(self, x, is_padding):
        scores = torch.tanh(self.key(x)) @ self.query
        weights = scores.masked_fill(is_padding, float("-inf")).softmax(dim=-1)
        return (weights[..., None] * x).sum(dim=1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.pool = Pooling(24)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens):
        return self.head(self.pool(self.embed(tokens), tokens == 0))


torch.manual_seed(0)
tokens = torch.randint(1, 50, (128, 10))
lengths = torch.randint(3, 11, (128,))
lengths[16 * 5 + 3] = 0
tokens[torch.arange(10)[None] >= lengths[:, None]] = 0
labels = (tokens.sum(1) > 150).long()
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    chosen = slice(16 * step, 16 * step + 16)
    loss = F.cross_entropy(model(tokens[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
