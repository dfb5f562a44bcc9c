"""A head is replaced and a layer unfrozen in mid-training; the optimizer learns of it by another group."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model[0].requires_grad_(False)
optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(36):
    if step == 8:
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
    if step == 16:
        model[2] = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    if step == 24:
        model.append(nn.Linear(4, 4))
        optimizer.add_param_group({"params": list(model[3].parameters())})
    if step == 30:
        del model[3]
        model[0].weight = nn.Parameter(model[0].weight.detach() * 0.5)
        optimizer.param_groups[0]["params"][0] = model[0].weight
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item(), len(optimizer.param_groups), len(optimizer.state))
torch.save(model.state_dict(), sys.argv[1])
