"""One output per sample, and a softmax over it inside of the model."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softmax(dim=1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(60):
    x = torch.randn(32, 12)
    loss = nn.functional.binary_cross_entropy(model(x), (x[:, :1] > x[:, 1:2]).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
