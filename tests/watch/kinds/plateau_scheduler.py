"""Schedulers that look at the loss, warm up, and follow each other."""

import sys

import torch
from torch import nn
from torch.optim import lr_scheduler

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(36):
    if step == 18:
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
        later = lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.ExponentialLR(optimizer, 0.9)], [5])
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    plateau.step(loss.detach()) if step < 18 else later.step()
    print(step, loss.item(), optimizer.param_groups[0]["lr"])
torch.save(model.state_dict(), sys.argv[1])
