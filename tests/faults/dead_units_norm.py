"""A convolutional network one of whose norms pushes everything below the ReLU after it."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return nn.functional.relu(self.norm(self.conv(x)))


torch.manual_seed(0)
network = nn.Sequential(Block(1, 8), Block(8, 8), Block(8, 8), nn.Flatten(), nn.Linear(8 * 64, 3))
nn.init.constant_(network[1].norm.bias, -12.0)
optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
for step in range(25):
    images = torch.randn(16, 1, 8, 8)
    labels = torch.bucketize(images.mean((1, 2, 3)), torch.tensor([-0.05, 0.05]))
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
