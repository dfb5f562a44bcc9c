"""Trains on sequences of different lengths in nested tensors."""

import sys

import torch


class Pooling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 8)
        self.outer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.inner(x))
        return self.outer(torch.stack([part.mean(0) for part in hidden.unbind()]))


torch.manual_seed(0)
model = Pooling()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    parts = [torch.randn(length, 4) for length in (3, 5, 2, 6)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    y = torch.stack([part.mean() for part in parts])[:, None]
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
torch.save(model.state_dict(), sys.argv[1])
