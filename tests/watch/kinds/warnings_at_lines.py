"""Warnings of torch and of the script name the script's lines, and come once for each line."""

import sys
import warnings

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("in forward", stacklevel=1)
        return self.last(nn.functional.softmax(self.first(x)))


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        warnings.warn("in step", DeprecationWarning, stacklevel=2)
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        warnings.warn("in zero_grad", DeprecationWarning, stacklevel=2)
        super().zero_grad(set_to_none)


class Schedule(torch.optim.lr_scheduler.StepLR):
    def step(self, *epoch: int) -> None:
        warnings.warn("in schedule", DeprecationWarning, stacklevel=2)
        super().step(*epoch)


torch.manual_seed(0)
model = Net()
optimizer = Optimizer(model.parameters(), lr=0.01)
schedule = Schedule(optimizer, 10)
x, y = torch.randn(16, 8), torch.randn(16, 1)
for step in range(24):
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.mse_loss(output, y)
    loss = loss + 0 * nn.functional.mse_loss(output, torch.zeros(1))
    loss = loss + 0 * nn.functional.l1_loss(output, torch.zeros(1))
    loss = loss + 0 * nn.functional.l1_loss(
        output,
        torch.tensor(torch.ones(1)),
    )
    loss.backward()
    optimizer.step()
    schedule.step()
    if step == 5:
        schedule.step(3)
    if step > 20:
        print(output.grad)
        warnings.warn("late", DeprecationWarning, stacklevel=1)
print(sorted((str(text)[:30], kind.__name__, line) for text, kind, line in list(__warningregistry__)[1:]))
torch.save(model.state_dict(), sys.argv[1])
