"""Modules made in forward that have nothing to learn: a norm with its start values, a filter with fixed numbers."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolve = nn.Conv2d(1, 8, 3, padding=1)
        self.last = nn.Linear(8 * 64, 3)

    def forward(self, x):
        blur = nn.Conv2d(1, 1, 3, padding=1, bias=False)
        blur.weight.data.fill_(1 / 9)
        h = torch.relu(self.convolve(blur(x)))
        h = nn.LayerNorm(h.shape[1:])(h)
        return self.last(h.flatten(1))


torch.manual_seed(0)
labels = torch.randint(0, 3, (160,))
pictures = torch.randn(160, 1, 8, 8) * 0.3
for number, label in enumerate(labels):
    pictures[number, 0, label * 2 : label * 2 + 2] += 1
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(5):
    for rows in torch.randperm(160).split(16):
        loss = nn.functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
