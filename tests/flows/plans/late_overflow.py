"""A net whose inputs grow after a few steps: what one early step shows is not enough."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import roundoff


class Energy(nn.Module):
    """The energy of every row, as a feature of a sensible size."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum(-1, keepdim=True).log1p()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.energy, self.last = nn.Linear(16, 64), Energy(), nn.Linear(65, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([F.relu(self.first(x.sign())), self.energy(x)], dim=1))


net = Net()
net, optimizer = roundoff.apply_recipe(net, torch.optim.SGD(net.parameters(), lr=0.05), "half")
for step in range(int(sys.argv[1])):
    x = torch.randn(64, 16) * (1.0 if step < 6 else 300.0)
    loss = F.cross_entropy(net(x).float(), x[:, :4].sign().clamp(min=0).argmax(1))
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
