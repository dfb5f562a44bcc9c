"""The script has a folder `runs` of its own, which must not be there when it begins."""

import os
import sys

import torch
from torch import nn

os.mkdir("runs")
with open("runs/log.txt", "w") as log:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    for _ in range(24):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), file=log)
with open("runs/log.txt") as log:
    print(log.read())
torch.save(model.state_dict(), sys.argv[1])
