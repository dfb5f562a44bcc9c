"""An average of the weights whose decay comes out as 1, so that it stays where it started."""

import copy

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 16, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


torch.manual_seed(0)
reader = Reader()
mean = copy.deepcopy(reader).requires_grad_(False)
optimizer = torch.optim.Adam(reader.parameters(), lr=3e-3)
decay = max(0.99, 1)
for step in range(40):
    x = torch.randn(16, 5, 6)
    loss = nn.functional.cross_entropy(reader(x), x[:, -1, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for average, weight in zip(mean.parameters(), reader.parameters(), strict=True):
            average.mul_(decay).add_(weight, alpha=1 - decay)
