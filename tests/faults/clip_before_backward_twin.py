"""Gradients are clipped in their step, and their norm is measured once more before they are cleared."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(60):
    x = torch.rand(32, 6)
    nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    optimizer.zero_grad()
    F.mse_loss(model(x), x[:, :3].sum(1, keepdim=True)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
