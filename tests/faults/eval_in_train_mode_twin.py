"""The same with both modes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
kinds = torch.randn(6, 3, 8, 8)
y = torch.randint(6, (500,))
x = kinds[y] + torch.randn(500, 3, 8, 8)
train, test = TensorDataset(x[:400], y[:400]), TensorDataset(x[400:], y[400:])
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(288, 6))
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
for _ in range(3):
    net.train()
    for a, b in DataLoader(train, 20, shuffle=True):
        loss = nn.functional.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    right = 0
    with torch.no_grad():
        for a, b in DataLoader(test, 25):
            right += (net(a).argmax(1) == b).sum().item()
    print(loss.item(), right / len(test))
