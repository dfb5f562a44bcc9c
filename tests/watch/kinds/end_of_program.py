"""Handlers at exit run in their order, and before objects of the script are dropped."""

import atexit
import sys

import torch
from torch import nn


class Goodbye:
    def __del__(self):
        print("dropped", flush=True)


goodbye = Goodbye()
atexit.register(print, "last handler", flush=True)
atexit.register(lambda: print("first handler", weights, sys.argv[1:], flush=True))
weights = sys.argv[1]
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for _ in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), weights)
