"""A cache of prepared batches that is never emptied."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
cache = {}


def prepared(step):
    if step not in cache:
        cache[step] = torch.randn(256, 512)
    return cache[step]


for step in range(300):
    x = prepared(step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
