"""The script tunes the garbage collector and counts what it finds itself."""

import gc
import sys

import torch
from torch import nn


class Cycle:
    num_freed = 0

    def __init__(self):
        self.own = self

    def __del__(self):
        Cycle.num_freed += 1


gc.collect()
gc.freeze()
gc.disable()
torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for _ in range(24):
    Cycle()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(Cycle.num_freed, gc.isenabled(), gc.get_threshold(), gc.garbage, gc.callbacks)
gc.collect()
print(Cycle.num_freed)
torch.save(model.state_dict(), sys.argv[1])
