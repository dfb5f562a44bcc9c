"""Layers that are unfrozen one after the other, and added to the optimizer as they are."""

import torch
from torch import nn

layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
model = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())), nn.Linear(32, 2))
layers.requires_grad_(False)
optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.1)
for step in range(120):
    if step in (30, 60, 90):
        layer = layers[3 - step // 30]
        layer.requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters()})
    x = torch.randn(64, 32)
    loss = nn.functional.cross_entropy(model(x), (x[:, :8].sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
