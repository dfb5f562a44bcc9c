"""Shuffled batches of four out of three classes, some of which hold one class by chance."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

labels = torch.randint(0, 3, (400,))
points = torch.randn(3, 10)[labels] * 2 + torch.randn(400, 10)
loader = DataLoader(TensorDataset(points, labels), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
