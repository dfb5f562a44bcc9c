"""Losses of single samples, each divided by the number of samples, and added up: a mean in other words."""

import torch
from torch import nn

model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(80):
    images = torch.randn(24, 1, 8, 8)
    labels = images[:, 0, :2, :2].flatten(1).argmax(1)
    losses = nn.functional.cross_entropy(model(images), labels, reduction="none")
    loss = (losses / len(losses)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
