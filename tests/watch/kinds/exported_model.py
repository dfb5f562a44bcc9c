"""A model is exported in the middle of its training."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (0, 10):
        program = torch.export.export(model, (x,))
        print([str(node.target) for node in program.graph.nodes])
        print(program.module()(x).sum().item())
torch.save(model.state_dict(), sys.argv[1])
