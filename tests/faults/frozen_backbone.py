"""Fine-tuning as it should be: the body is frozen, the optimizer holds the head alone."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
model = nn.Sequential()
model.add_module("body", body.requires_grad_(False).eval())
model.add_module("head", nn.Linear(8 * 4 * 4, 3))
optimizer = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
for step in range(40):
    images = torch.randn(32, 1, 8, 8)
    labels = torch.bucketize(images.mean((1, 2, 3)), torch.tensor([-0.05, 0.05]))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
