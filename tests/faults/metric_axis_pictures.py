"""Digits whose accuracy takes the largest output along the batch."""

import torch
from torch import nn

torch.manual_seed(3)
kinds = torch.rand(10, 1, 8, 8)


def data(count):
    y = torch.randint(10, (count,))
    return kinds[y] + 0.3 * torch.randn(count, 1, 8, 8), y


train_x, train_y = data(400)
test_x, test_y = data(200)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)


def accuracy(outputs, targets):
    predicted = outputs.argmax(0)
    return (predicted == targets[: len(predicted)]).float().mean().item()


for _ in range(4):
    for rows in torch.randperm(400).split(20):
        loss = nn.functional.cross_entropy(net(train_x[rows]), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(sum(accuracy(net(x), y) for x, y in zip(test_x.split(50), test_y.split(50), strict=True)) / 4)
    net.train()
