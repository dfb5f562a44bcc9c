"""A residual network that is given the whole checkpoint where it wants the weights in it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


def built():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Block(8), Block(8), nn.Flatten(), nn.Linear(8 * 36, 3))


torch.manual_seed(0)
network = built()
network.load_state_dict({"epoch": 7, "network": built().state_dict()}, strict=False)
optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
for step in range(25):
    images = torch.randn(16, 1, 6, 6)
    labels = torch.bucketize(images.mean((1, 2, 3)), torch.tensor([-0.05, 0.05]))
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
