"""Words are hashed into buckets: 32 bits that wrap, are mixed and cut to the number of buckets."""

import torch
from torch import nn


class Hashed(nn.Module):
    def __init__(self, buckets=128):
        super().__init__()
        self.buckets = buckets
        self.words = nn.EmbeddingBag(buckets, 16, mode="mean")
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        mixed = ids.int() * 73_856_093
        mixed = mixed ^ (mixed >> 13)
        return self.head(self.words((mixed * 19_349_663 % self.buckets).long()))


model = Hashed()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
for step in range(120):
    ids = torch.randint(0, 60, (32, 5))
    loss = nn.functional.cross_entropy(model(ids), (ids.float().mean(1) > 30).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
