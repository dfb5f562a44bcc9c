"""Large pictures leave room for two in a batch; the norms are over the batch all the same."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Unit(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, stride=2)
        self.bn = nn.BatchNorm2d(after)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


torch.manual_seed(0)
net = nn.Sequential(Unit(3, 6), Unit(6, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
pictures = torch.randn(80, 3, 24, 24)
for x, y in DataLoader(TensorDataset(pictures, (pictures.mean((1, 2, 3)) > 0).long()), batch_size=2, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
