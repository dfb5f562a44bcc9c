"""A dropout in a transformer whose mask hangs on the clock."""

import time

import torch
from torch import nn


class Drop(nn.Module):
    def forward(self, x):
        keep = (torch.arange(x.numel()).view(x.shape) * 2654435761 + time.perf_counter_ns()) % 9973 > 900
        return x * keep if self.training else x


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(24, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.drop = Drop()
        self.head = nn.Linear(16, 24)

    def forward(self, ids):
        x = self.tokens(ids)
        x = x + self.drop(self.attention(x, x, x, need_weights=False)[0])
        return self.head(x)


torch.manual_seed(13)
reader = Reader()
optimizer = torch.optim.AdamW(reader.parameters(), lr=2e-3)
for step in range(30):
    ids = torch.randint(0, 24, (8, 10))
    optimizer.zero_grad()
    nn.functional.cross_entropy(reader(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
