"""The rare class is put into the data set five times, so that it is not forgotten."""

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

x = torch.randn(400, 8)
y = (x[:, 0] > 1.2).long()
whole = TensorDataset(x, y)
rare = TensorDataset(x[y == 1], y[y == 1])
loader = DataLoader(ConcatDataset([whole, *[rare] * 5]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
