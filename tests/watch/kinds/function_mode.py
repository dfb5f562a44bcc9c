"""A mode of the script's own counts every torch function, around the whole training and around single steps."""

import sys
from collections import Counter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.functions = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.functions[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


torch.manual_seed(0)
whole = Counting()
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
with whole:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(24):
        with Counting() as single:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(step, loss.item(), single.functions.total())
print(sorted(whole.functions.items()))
torch.save(model.state_dict(), sys.argv[1])
