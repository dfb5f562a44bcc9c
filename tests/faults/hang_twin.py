"""Steps that take a second each, with an evaluation that takes longer, are no hang."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(4):
    x = torch.randn(32, 12)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    time.sleep(0.5 if step < 3 else 1.5)
    optimizer.step()
