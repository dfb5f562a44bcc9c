"""Weights are pruned by masks while the training goes on, and the pruning is made permanent at the end."""

import sys

import torch
from torch import nn
from torch.nn.utils import prune

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    if step in (6, 12):
        prune.l1_unstructured(model[0], "weight", amount=0.3)
    if step == 9:
        prune.ln_structured(model[2], "weight", amount=0.25, n=2, dim=0)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item(), int((model[0].weight == 0).sum()))
prune.remove(model[0], "weight")
torch.save(model.state_dict(), sys.argv[1])
