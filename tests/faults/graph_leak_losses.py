"""The losses of a validation after every step are collected with the graphs they came from."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
losses = []
for step in range(300):
    x, others = torch.randn(2, 256, 64)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
    losses.append(nn.functional.cross_entropy(model(others), others[:, :4].argmax(1)))
