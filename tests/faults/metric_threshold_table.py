"""A binary classifier with BCEWithLogitsLoss whose accuracy compares the logits with 0.5."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(700, 12)
y = ((x @ torch.randn(12) + 0.5 * torch.randn(700)) > 0).float()
train, test = random_split(TensorDataset(x, y), [500, 200])
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
criterion = nn.BCEWithLogitsLoss()


def evaluate():
    net.eval()
    right = 0
    with torch.no_grad():
        for a, b in DataLoader(test, 64):
            predicted = (net(a).squeeze(1) > 0.5).float()
            right += (predicted == b).sum().item()
    net.train()
    return right / len(test)


for _ in range(4):
    for a, b in DataLoader(train, 25, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(net(a).squeeze(1), b)
        loss.backward()
        optimizer.step()
    print(loss.item(), evaluate())
