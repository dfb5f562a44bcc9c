"""Batches of sixteen, of which the last of an epoch has two samples."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.randint(0, 4, (130,))
points = 2 * torch.randn(4, 12)[labels] + 0.5 * torch.randn(130, 12)
loader = DataLoader(TensorDataset(points, labels), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(epoch, nn.functional.cross_entropy(model(points), labels).item())
