"""Trains with torch's own fake quantization, whose observers change their ranges in every forward."""

import sys

import torch
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver


class Quantized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.fake = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.fake(torch.relu(self.inner(x))))


torch.manual_seed(0)
model = Quantized()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 5:
        model.fake.disable_observer()
    print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
