"""Batches of one sample, which is all that fits; the loss goes up and down a lot."""

import torch
from torch import nn

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
    nn.Linear(8 * 9, 3),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    image = torch.randn(1, 1, 8, 8)
    label = torch.randint(0, 3, (1,))
    image[0, 0, 2 * int(label)] += 2
    loss = nn.functional.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
