"""Twelve layers whose weights are far too large at the start."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(12, 64), nn.ReLU()]
for _ in range(11):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 4))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=0.6)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
