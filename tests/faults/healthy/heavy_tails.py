"""Amounts of money: a few samples are a hundred times the others, and so are their losses."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(300):
    x = torch.randn(16, 6)
    y = x.sum(1, keepdim=True) + torch.distributions.StudentT(2.0).sample((16, 1))
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
