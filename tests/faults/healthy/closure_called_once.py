"""SGD with a closure, which it evaluates once in each step; the loop clears before."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(100):
    x = torch.randn(32, 6)

    def closure(x=x):
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > x[:, 1]).long())
        loss.backward()
        return loss

    model.zero_grad()
    optimizer.step(closure)
