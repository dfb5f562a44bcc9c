"""A schedule of a convolutional network restarts once, at a rate that was meant for another batch size."""

import torch
from torch import nn

torch.manual_seed(23)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
    nn.Flatten(), nn.Linear(8 * 9, 3),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 300.0 if step == 150 else 1.0)
for step in range(170):
    images = torch.randn(48, 1, 8, 8)
    images[:, 0, :2] += 2 * torch.randint(0, 3, (48, 1, 1))
    labels = images[:, 0, :2].mean((1, 2)).div(2).round().clamp(0, 2).long()
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(images), labels).backward()
    optimizer.step()
    schedule.step()
