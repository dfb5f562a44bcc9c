"""Predictions lose a dimension that the targets keep: (N,) == (N, 1) compares all with all."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(500, 8)
y = (x[:, 0] * x[:, 1] > 0).float().unsqueeze(1)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(4):
    model.train()
    for a, b in DataLoader(TensorDataset(x[:400], y[:400]), 20, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    model.eval()
    found = []
    with torch.no_grad():
        for a, b in DataLoader(TensorDataset(x[400:], y[400:]), 50):
            predicted = (model(a) > 0.5).float().squeeze()
            found.append((predicted == b).float().mean())
    print(torch.stack(found).mean().item())
