"""An average of a convolutional network's weights, evaluated with the statistics that its norms began with."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
)
average = copy.deepcopy(model).eval()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def batch():
    pictures = torch.randn(32, 1, 8, 8) * 2 + 1
    return pictures, pictures.mean((1, 2, 3)).mul(30).long() % 3


for _ in range(4):
    for _ in range(15):
        pictures, labels = batch()
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, live in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(live, 0.05)
    with torch.no_grad():
        pictures, labels = batch()
        print(F.cross_entropy(average(pictures), labels).item())
