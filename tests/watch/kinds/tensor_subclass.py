"""Inputs and parameters are tensors of classes of the script's own, which count the functions they see."""

import sys
from collections import Counter

import torch
from torch import nn

seen = Counter()


class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        seen[func.__name__] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
model[2].weight = nn.Parameter(model[2].weight.detach().as_subclass(Counted))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 8).as_subclass(Counted), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
print(type(loss).__name__, sorted(seen.items()))
torch.save({name: p.detach().as_subclass(torch.Tensor) for name, p in model.state_dict().items()}, sys.argv[1])
