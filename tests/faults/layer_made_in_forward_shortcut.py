"""Residual blocks of a picture classifier: the shortcut that changes the number of channels is made on every call."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.sizes = (channels_in, channels_out)
        self.convolve = nn.Conv2d(channels_in, channels_out, 3, padding=1)

    def forward(self, x):
        short = x if self.sizes[0] == self.sizes[1] else nn.Conv2d(*self.sizes, 1).to(x.device)(x)
        return torch.relu(self.convolve(x) + short)


torch.manual_seed(0)
labels = torch.randint(0, 3, (160,))
pictures = torch.randn(160, 1, 8, 8) * 0.3
for number, label in enumerate(labels):
    pictures[number, 0, label * 2 : label * 2 + 2] += 1
model = nn.Sequential(Block(1, 8), Block(8, 8), nn.Flatten(), nn.Linear(512, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(5):
    for rows in torch.randperm(160).split(16):
        loss = nn.functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
