"""A second head that is not trained yet leaves its outputs, with their graphs, in a list of the model."""

import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.later = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16, 3)
        self.seen = []

    def forward(self, x):
        self.seen.append(self.later(x).mean())
        return self.head(self.body(x).mean((2, 3)))


torch.manual_seed(17)
network = TwoHeads()
optimizer = torch.optim.SGD([*network.body.parameters(), *network.head.parameters()], lr=0.05, momentum=0.9)
for step in range(260):
    images = torch.randn(16, 1, 32, 32)
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images), images[:, 0, 0, :3].argmax(1)).backward()
    optimizer.step()
