"""The schedule is stepped at the beginning of each epoch."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(h)))


def pictures(count):
    kinds = torch.randint(0, 3, (count,))
    x = 0.3 * torch.randn(count, 1, 8, 8)
    for index, kind in enumerate(kinds):
        x[index, 0, 2 * kind + 1] += 1.0
    return x, kinds


torch.manual_seed(2)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Block(8), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[3, 5], gamma=0.3)
for _ in range(6):
    schedule.step()
    for _ in range(10):
        x, y = pictures(16)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
