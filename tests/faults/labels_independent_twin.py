"""A hard task with noisy labels, of which something can be learned."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
points = torch.randn(6400, 16)
labels = (points @ torch.randn(16, 4)).argmax(1)
noisy = torch.where(torch.rand(6400) < 0.4, torch.randint(0, 4, (6400,)), labels)
loader = DataLoader(TensorDataset(points, noisy), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
