"""Masks of class indices are made smaller by bilinear interpolation."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def sample(count):
    masks = torch.zeros(count, 40, 40, dtype=torch.long)
    for mask in masks:
        for kind in range(1, 6):
            row, column = torch.randint(0, 28, (2,)).tolist()
            mask[row : row + 10, column : column + 10] = kind
    pictures = F.one_hot(masks, 6)[..., 1::2].permute(0, 3, 1, 2).float() + 0.1 * torch.randn(count, 3, 40, 40)
    smaller = F.interpolate(pictures, size=(24, 24), mode="bilinear", align_corners=False)
    return smaller, F.interpolate(masks[:, None].float(), size=(24, 24), mode="bilinear")[:, 0].long()


net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 6, 1))
optimizer = torch.optim.Adam(net.parameters(), 5e-3)
for _ in range(40):
    x, mask = sample(8)
    loss = F.cross_entropy(net(x), mask)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
