"""A small language model whose embedding, drawn from N(0, 1), is its output layer too."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(100, 64)
        self.mix = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 100, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        h = self.tokens(ids)
        return self.head(self.norm(h + self.mix(h)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for _ in range(40):
    ids = torch.randint(0, 100, (8, 12))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ((ids * 3 + 1) % 100).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
