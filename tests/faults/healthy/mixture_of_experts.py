"""Experts behind a router that takes the best two: some get no token in a step; a second loss spreads the load."""

import torch
from torch import nn


class Mixture(nn.Module):
    def __init__(self, width=16, num=6):
        super().__init__()
        self.router = nn.Linear(width, num)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width)) for _ in range(num)
        )

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        weights, chosen = shares.topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        load = nn.functional.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        return x + out, len(self.experts) * (load * shares.mean(0)).sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mixture, self.head = nn.Linear(8, 16), Mixture(), nn.Linear(16, 4)

    def forward(self, x):
        h, spread = self.mixture(self.first(x))
        return self.head(h), spread


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    x = torch.randn(12, 8)
    scores, spread = model(x)
    loss = nn.functional.cross_entropy(scores, (x[:, :4] * x[:, 4:]).argmax(1)) + 0.01 * spread
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
