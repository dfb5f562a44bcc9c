"""Adapts a small classifier to new classes: `python train.py`, or `python train.py mended`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


torch.manual_seed(0)
labels = torch.randint(0, 8, (1280,))
points = torch.randn(8, 16)[labels] + 0.5 * torch.randn(1280, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)

model = Classifier(num_classes=1000)
model.body.requires_grad_(False)  # only the new head is to learn
if "mended" in sys.argv:
    model.head = nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
else:
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    model.head = nn.Linear(64, 8)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss.item():.3f}")
