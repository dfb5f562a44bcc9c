"""A convolutional network with batch norm under AdamW, whose weight decay was meant to be 0.005."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(16)
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4),
)  # fmt: skip
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, weight_decay=5.0)
for step in range(60):
    pictures = torch.randn(32, 1, 8, 8)
    loss = F.cross_entropy(network(pictures), pictures[:, 0, ::2, ::2].mean((1, 2)).abs().mul(40).long() % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
