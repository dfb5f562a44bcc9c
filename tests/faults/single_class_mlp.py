"""The label was read from the wrong column, which holds the same number in every row."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kinds = torch.randint(0, 5, (1024,))
points = torch.randn(5, 16)[kinds] + 0.5 * torch.randn(1024, 16)
rows = torch.stack([kinds, torch.full_like(kinds, 3)], dim=1)
loader = DataLoader(TensorDataset(points, rows[:, 1]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(2):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
