"""Healthy: the gradient of sqrt(h * h) is NaN at 0, and the backward of ReLU takes it away."""

import torch
from torch import nn


class Norm(nn.Module):
    def forward(self, h):
        return torch.sqrt(h * h)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Norm(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(64, 8)
for _ in range(12):
    batch = x[torch.randperm(64)[:32]]
    loss = nn.functional.cross_entropy(model(batch), batch.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
