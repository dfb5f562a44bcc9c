"""A native function that is handed a bad address, inside an op of its own."""

import ctypes

import torch
from torch import nn


@torch.library.custom_op("planted::gather", mutates_args=())
def gather(x: torch.Tensor, address: int) -> torch.Tensor:
    if address:
        ctypes.string_at(address)
    return x.clone()


class Gather(nn.Module):
    def forward(self, x):
        gather(x.detach(), 8 if step == 5 else 0)
        return x.relu()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), Gather(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(10):
    x = torch.randn(32, 12)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
