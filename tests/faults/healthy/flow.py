"""A normalising flow: the loss is a negative log-likelihood that may well go below 0."""

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, x):
        a, b = x.flip(-1).chunk(2, -1) if self.flip else x.chunk(2, -1)
        scale, shift = self.net(a).chunk(2, -1)
        scale = scale.tanh()
        return torch.cat([a, b * scale.exp() + shift], -1), scale.sum(-1)


flow = nn.ModuleList(Coupling(bool(number % 2)) for number in range(4))
optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
for step in range(200):
    first = torch.randn(64, 1) * 0.3
    x = torch.cat([first, first.square() + 0.05 * torch.randn(64, 1)], -1)
    log_determinant = torch.zeros(64)
    for layer in flow:
        x, more = layer(x)
        log_determinant = log_determinant + more
    loss = (0.5 * x.square().sum(-1) - log_determinant).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
