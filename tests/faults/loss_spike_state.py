"""Noise is written over a layer in the middle of a training; the batches are as ever."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(260):
    if step == 200:
        with torch.no_grad():
            model[2].weight.add_(torch.randn(4, 64))
    x = torch.randn(64, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
