"""The script works in a folder of its own, as those that hydra starts do."""

import os
import sys
from pathlib import Path

import torch
from torch import nn

weights = os.path.abspath(sys.argv[1])
Path("outputs").mkdir()
os.chdir("outputs")
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 10:
        os.makedirs("deeper")
        os.chdir("deeper")
print(os.listdir(), os.listdir(".."))
torch.save(model.state_dict(), weights)
