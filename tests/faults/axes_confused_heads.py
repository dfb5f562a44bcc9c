"""The features of an encoder are split into heads without moving them before the places."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (part.reshape(n, self.heads, length, width // self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(n, length, width))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 32)
        self.places = nn.Parameter(0.02 * torch.randn(1, 10, 32))
        self.attention = Attention(32, 4)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 2)

    def forward(self, ids):
        x = self.tokens(ids) + self.places
        return self.head(self.norm(x + self.attention(x)).mean(1))


torch.manual_seed(0)
encoder = Encoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
for step in range(50):
    ids = torch.randint(0, 20, (16, 10))
    loss = nn.functional.cross_entropy(encoder(ids), (ids[:, 0] > ids[:, 5]).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
