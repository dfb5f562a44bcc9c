"""Classes are weighted by how frequent they are."""

import torch
from torch import nn

torch.manual_seed(0)
y = (torch.rand(1000) < 0.1).long()
x = torch.randn(1000, 10) + 0.8 * y[:, None]
counts = torch.bincount(y).float()
criterion = nn.CrossEntropyLoss(weight=counts / counts.sum())
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(80):
    rows = torch.randint(0, 1000, (40,))
    loss = criterion(net(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
