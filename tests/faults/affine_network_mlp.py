"""Three linear layers with nothing between them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(32, 12)
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
