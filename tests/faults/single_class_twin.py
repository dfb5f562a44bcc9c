"""Data sorted by class: for many steps all labels are the same, and then they are others."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(4).repeat_interleave(400)
points = 2 * torch.randn(4, 16)[labels] + torch.randn(1600, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=16)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 23:
        break
print(loss.item())
