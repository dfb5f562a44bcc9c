"""Targets are taken from one pass of a shuffling loader, predictions from another."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
centers = torch.randn(5, 20) * 2


def make(count):
    y = torch.randint(0, 5, (count,))
    return TensorDataset(centers[y] + torch.randn(count, 20), y)


train, test = make(600), make(200)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(test, batch_size=50, shuffle=True)
truth = torch.cat([y for _, y in loader])
for _ in range(4):
    model.train()
    for x, y in DataLoader(train, batch_size=30, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(x).argmax(1) for x, _ in loader])
    print(loss.item(), (predicted == truth).float().mean().item())
