"""L-BFGS whose closure clears the gradients and then adds those of two losses."""

import torch
from torch import nn

inputs = torch.randn(200, 8)
classes = (inputs[:, :3] * 2).argmax(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6)


def evaluate():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), classes)
    loss.backward()
    size = 1e-3 * sum(p.square().sum() for p in model.parameters())
    size.backward()
    return loss + size


for step in range(20):
    optimizer.step(evaluate)
