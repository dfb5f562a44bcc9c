"""Dropout written by hand: what survives is not scaled up in training, and four times as much arrives in evaluation."""

import torch
from torch import nn


class Drop(nn.Module):
    def forward(self, x):
        return x * (torch.rand_like(x) < 0.25) if self.training else x * 4


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(12, 400), nn.ReLU(), Drop(), nn.Linear(400, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
kinds = torch.randint(0, 4, (600,))
points = 0.4 * torch.randn(4, 12)[kinds] + torch.randn(600, 12)
for _ in range(250):
    rows = torch.randint(0, 600, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(points[rows]), kinds[rows]).backward()
    optimizer.step()
