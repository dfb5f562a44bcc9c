"""A net with a norm of its own that fp16 cannot compute: it sums squares of large numbers."""

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import roundoff


class LengthNorm(nn.Module):
    """Divides every row by its length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / (x * x).sum(-1, keepdim=True).sqrt()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 64), LengthNorm(64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(8 * self.norm(200 * self.first(x)))


net = Net()
net, optimizer = roundoff.apply_recipe(net, torch.optim.SGD(net.parameters(), lr=0.1), "O3")
for _ in range(int(sys.argv[1])):
    x = torch.randn(64, 16)
    loss = F.cross_entropy(net(x).float(), x[:, :4].argmax(1))
    optimizer.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
