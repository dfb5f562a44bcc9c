"""Two classes, one of them rare, in a stream that cannot be read in advance."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(300):
    x = torch.randn(16, 8)
    labels = (x[:, 0] + x[:, 1] > 3.6).long()
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
