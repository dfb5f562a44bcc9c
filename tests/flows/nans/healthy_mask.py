"""Healthy: a causal mask of -inf, of which softmax makes zeros."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 16)

    def forward(self, ids):
        q, k, v = self.qkv(self.tokens(ids)).chunk(3, -1)
        future = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        return self.head((q @ k.transpose(-1, -2) / 8**0.5 + future).softmax(-1) @ v)


torch.manual_seed(0)
model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
texts = torch.arange(64)[:, None].add(torch.arange(9)) % 16
for _ in range(12):
    ids = texts[torch.randperm(64)[:16]]
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
