"""Rare events: most batches hold none, and the data is shuffled."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(1200, 10)
y = (x[:, 0] > 2.0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    for rows, events in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(rows).squeeze(1), events)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
