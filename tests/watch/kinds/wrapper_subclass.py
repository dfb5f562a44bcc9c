"""A weight is a tensor of a class that computes on a tensor it holds, as quantized weights are."""

import sys

import torch
from torch import nn
from torch.utils._pytree import tree_map

count = 0


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=False)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        global count
        count += 1
        unwrap = lambda x: x.inner if isinstance(x, Scaled) else x  # noqa: E731
        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return Scaled(out)
        return out


torch.manual_seed(0)
frozen = Scaled(torch.randn(8, 8))
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    loss = nn.functional.cross_entropy(model(torch.mm(x, frozen)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item(), count)
torch.save(model.state_dict(), sys.argv[1])
