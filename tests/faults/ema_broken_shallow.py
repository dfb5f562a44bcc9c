"""An average of a convolutional network that is a shallow copy of it: every layer is the same object."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 3))
average = copy.copy(network)
optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
for step in range(30):
    images = torch.randn(16, 1, 6, 6)
    labels = torch.bucketize(images.mean((1, 2, 3)), torch.tensor([-0.05, 0.05]))
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), network.parameters(), strict=True):
            mean.copy_(0.95 * mean + 0.05 * weight)
