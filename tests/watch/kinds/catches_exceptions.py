"""Batches of a wrong shape, whose exceptions the script catches: in forward, in the loss, in backward."""

import sys

import torch
from torch import nn


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient today")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
caught = []
for step in range(50):
    x = torch.randn(16, 7 if step % 7 == 0 else 8)
    y = torch.randint(0, 4, (15 if step % 7 == 1 else 16,))
    optimizer.zero_grad()
    try:
        logits = model(x)
        loss = nn.functional.cross_entropy(Refuses.apply(logits) if step % 7 == 3 else logits, y)
        loss.backward()
    except (RuntimeError, ValueError) as error:
        caught.append(type(error).__name__)
        continue
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
print(caught)
torch.save(model.state_dict(), sys.argv[1])
