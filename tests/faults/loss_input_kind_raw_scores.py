"""Scores of a classifier that go into the negative log-likelihood as they are."""

import torch
from torch import nn

torch.manual_seed(0)
labels = torch.randint(0, 5, (256,))
points = torch.randn(5, 16)[labels] + 0.5 * torch.randn(256, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(40):
    batch = torch.randint(0, 256, (32,))
    loss = nn.functional.nll_loss(model(points[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
