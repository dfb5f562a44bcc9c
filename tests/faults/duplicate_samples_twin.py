"""Rare classes are drawn more often, by weight."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
labels = (torch.rand(256) < 0.1).long()
points = 2 * torch.randn(2, 16)[labels] + torch.randn(256, 16)
weights = 1 / labels.bincount()[labels]
sampler = WeightedRandomSampler(weights.tolist(), 256)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, sampler=sampler)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
