"""An image is changed until a frozen network sees a class in it: the only parameter is the picture."""

import torch
from torch import nn

network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 100, 5)).eval()
network.requires_grad_(False)
picture = torch.randn(1, 1, 12, 12).mul_(0.1).requires_grad_()
optimizer = torch.optim.Adam([picture], lr=0.02)
for step in range(80):
    loss = nn.functional.cross_entropy(network(picture), torch.tensor([3])) + 0.01 * picture.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
