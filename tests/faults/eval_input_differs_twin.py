"""The same order in both."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
colors = torch.tensor([[0.8, 0.2, 0.15], [0.15, 0.8, 0.2], [0.2, 0.15, 0.8]])


def pictures(count):
    y = torch.randint(3, (count,))
    return (colors[y][:, :, None, None] + 0.2 * torch.randn(count, 3, 8, 8)).clamp(0, 1), y


x, y = pictures(400)
test_x, test_y = pictures(100)
train, test = TensorDataset(x, y), TensorDataset(test_x, test_y)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(5):
    net.train()
    for a, b in DataLoader(train, 25, shuffle=True):
        loss = nn.functional.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        print(loss.item(), sum((net(a).argmax(1) == b).sum().item() for a, b in DataLoader(test, 25)))
