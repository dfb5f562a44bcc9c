"""Trains a model with complex weights; its loss is real."""

import sys

import torch


class Rotation(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4, dtype=torch.complex64) / 2)
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x @ self.weight) * self.scale


torch.manual_seed(0)
model = Rotation()
target = torch.randn(4, 4, dtype=torch.complex64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(8):
    x = torch.randn(16, 4, dtype=torch.complex64)
    loss = (model(x) - x @ target).abs().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
