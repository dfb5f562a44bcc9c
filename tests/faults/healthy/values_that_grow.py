"""Temporal differences: values grow for a long time, and so does what the loss compares them with."""

import copy

import torch
from torch import nn

values = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
slow = copy.deepcopy(values).requires_grad_(False)
optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
for step in range(200):
    states = torch.randn(64, 4)
    later = 0.9 * states + 0.3 * torch.randn(64, 4)
    goal = 1.0 + 0.3 * torch.randn(64) + 0.98 * slow(later).squeeze(1)
    loss = nn.functional.mse_loss(values(states).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(slow.parameters(), values.parameters(), strict=True):
            old.lerp_(new, 0.05)
