"""A backbone that was to be pretrained: its weights were never loaded, and it is frozen."""

import torch
from torch import nn

torch.manual_seed(0)
labels = torch.randint(0, 4, (480,))
pictures = torch.randn(480, 1, 16, 16) * 0.6
for number, label in enumerate(labels.tolist()):
    row, column = divmod(label, 2)
    pictures[number, 0, row * 8 + 2 : row * 8 + 6, column * 8 + 2 : column * 8 + 6] += 1.5
backbone = nn.Sequential(
    nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
model = nn.Sequential(backbone, nn.Linear(8, 4))
backbone.requires_grad_(False)
optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-3)
for _ in range(8):
    for rows in torch.randperm(480).split(32):
        loss = nn.functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
