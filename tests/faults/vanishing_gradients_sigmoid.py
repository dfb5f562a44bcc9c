"""Twelve sigmoid layers: next to nothing of the gradient reaches the first ones."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(12, 32), nn.Sigmoid()]
for _ in range(11):
    layers += [nn.Linear(32, 32), nn.Sigmoid()]
model = nn.Sequential(*layers, nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
