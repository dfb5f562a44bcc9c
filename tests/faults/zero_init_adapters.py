"""Adapters that are added to a trained net, whose both factors start at 0."""

import torch
from torch import nn


class Adapter(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


def fit(net, x, y, steps):
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 3e-3)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (64,))
        loss = nn.functional.mse_loss(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


torch.manual_seed(0)
x = torch.randn(400, 16)
y = torch.sin(x @ torch.randn(16, 3))
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
fit(net, x, y, 60)
for place in (0, 2):
    net[place] = Adapter(net[place])
fit(net, x, y @ torch.randn(3, 3), 250)
