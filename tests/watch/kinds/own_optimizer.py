"""The optimizer is a class of the script's own, which is no torch optimizer."""

import sys

import torch
from torch import nn


class Momentum:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
        self.speeds = [torch.zeros_like(p) for p in self.parameters]

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, speed in zip(self.parameters, self.speeds, strict=True):
            speed.mul_(0.9).add_(p.grad)
            p.sub_(self.lr * speed)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = Momentum(model.parameters(), 0.05)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
