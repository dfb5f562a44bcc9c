"""Modules whose special methods are unusual, or raise."""

import sys

import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x))

    def __eq__(self, other):
        raise RuntimeError("do not compare me")

    __hash__ = nn.Module.__hash__

    def __bool__(self):
        raise RuntimeError("ask me nothing")

    def __len__(self):
        raise RuntimeError("do not measure me")

    def __iter__(self):
        raise RuntimeError("do not go through me")

    def __contains__(self, item):
        raise RuntimeError("do not search me")

    def __repr__(self):
        raise RuntimeError("do not print me")


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.requested = []

    def forward(self, x):
        return self.inner(x)

    def __getattr__(self, name):
        if name in ("inner", "requested") or name.startswith("_"):
            return super().__getattr__(name)
        self.requested.append(name)
        raise RuntimeError(f"no {name} here")


class NoHash(nn.Linear):
    def __eq__(self, other):
        return torch.equal(self.weight, other.weight)

    __hash__ = nn.Module.__hash__


torch.manual_seed(0)
model = nn.ModuleList([Odd(), Odd(), Lazy(), NoHash(8, 4)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    hidden = x
    for layer in model:
        hidden = layer(hidden)
    loss = nn.functional.cross_entropy(hidden, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
print(model[2].requested)
torch.save(model.state_dict(), sys.argv[1])
