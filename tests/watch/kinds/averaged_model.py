"""Stochastic weight averaging: an averaged copy, its own schedule, and its norms updated at the end."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = SWALR(optimizer, swa_lr=0.05)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 12:
        averaged.update_parameters(model)
        scheduler.step()
update_bn([x[:16], x[16:]], averaged)
print(loss.item())
torch.save(averaged.state_dict(), sys.argv[1])
