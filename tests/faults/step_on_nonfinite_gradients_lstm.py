"""A root in the loss of a recurrent network: where it is exactly 0 its gradient is infinite, and the step is taken."""

import torch
from torch import nn


class Follower(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return x + self.out(self.lstm(x)[0]) * (x.abs().sum(-1, keepdim=True) > 0)


torch.manual_seed(12)
follower = Follower()
optimizer = torch.optim.Adam(follower.parameters(), lr=2e-3)
for step in range(16):
    x = torch.randn(8, 6, 3)
    if step == 7:
        x[2, 4] = 0.0
    distance = (follower(x) - 0.5 * x).pow(2).sum(-1).sqrt()
    optimizer.zero_grad()
    distance.mean().backward()
    optimizer.step()
