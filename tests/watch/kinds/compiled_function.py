"""Forward and loss together in a compiled function."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@torch.compile(backend="aot_eager")
def loss_of(x, y):
    return nn.functional.cross_entropy(model(x), y)


for step in range(50):
    x = torch.randn(16, 8)
    loss = loss_of(x, x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
