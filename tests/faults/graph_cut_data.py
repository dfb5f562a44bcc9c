"""A convolutional body whose features are handed on as .data, in the loop."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
head = nn.Linear(8 * 4 * 4, 3)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)
for step in range(30):
    images = torch.randn(16, 1, 8, 8)
    labels = torch.bucketize(images.mean((1, 2, 3)), torch.tensor([-0.05, 0.05]))
    features = body(images)
    loss = nn.functional.cross_entropy(head(features.data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
