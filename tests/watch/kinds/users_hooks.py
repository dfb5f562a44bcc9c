"""Trains with hooks of the script's own on modules and gradients, which count, change and collect."""

import sys
from typing import Any

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
collected: list[float] = []
calls = 0


def count(*_: Any) -> None:
    global calls
    calls += 1


def halve(_: torch.nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 0.5


def collect(_: torch.nn.Module, given: Any, results: Any) -> None:
    collected.append(float(results[0].sum()))


model[0].register_forward_pre_hook(count)
model[0].register_forward_hook(halve)
model[2].register_full_backward_hook(collect)
model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer.register_step_post_hook(count)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), calls, collected[-1], len(collected))
torch.save(model.state_dict(), sys.argv[1])
