"""Forty noisy samples and a large network: it learns them by heart."""

import torch
from torch import nn

torch.manual_seed(0)
center = torch.randn(32)
points, held_out = torch.randn(40, 32), torch.randn(400, 32)
labels = (points @ center + 4 * torch.randn(40) > 0).long()
held_out_labels = (held_out @ center + 4 * torch.randn(400) > 0).long()
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(60):
    model.train()
    for part in torch.randperm(40).split(20):
        loss = nn.functional.cross_entropy(model(points[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 4 == 3:
        model.eval()
        with torch.no_grad():
            print(epoch, loss.item(), nn.functional.cross_entropy(model(held_out), held_out_labels).item())
