"""Losses that start high for good reasons: a tied embedding, class weights, a sum of two losses."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 32)
        self.mix = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.tokens.weight
        self.aside = nn.Linear(32, 2)

    def forward(self, ids):
        h = self.mix(self.tokens(ids))
        return self.head(h), self.aside(h)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(60):
    ids = torch.randint(0, 40, (32,))
    words, side = model(ids)
    loss = nn.functional.cross_entropy(words, (ids + 1) % 40)
    loss = loss + 5 * nn.functional.cross_entropy(side, ids % 2, weight=torch.tensor([0.2, 5.0]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
