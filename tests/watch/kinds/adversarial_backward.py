"""The same with backward() into the batch's own .grad, as older tutorials do."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(50):
    x = torch.randn(16, 8)
    x.requires_grad = True
    y = x.argmax(1) % 4
    nn.functional.cross_entropy(model(x), y).backward()
    moved = x.data + 0.1 * x.grad.sign()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(moved), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
