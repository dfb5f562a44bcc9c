"""The rare class was oversampled before the split: half of the test rows are training rows."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(240, 10)
y = (x[:, 0] + torch.randn(240) > 1.2).long()
rare = (y == 1).nonzero()[:, 0]
rows = torch.cat([torch.arange(240), rare.repeat(4)])
dataset = TensorDataset(x[rows], y[rows])
num_test = len(dataset) // 5
train, test = random_split(dataset, [len(dataset) - num_test, num_test])
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(8):
    model.train()
    for inputs, labels in DataLoader(train, batch_size=48, shuffle=True):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(sum(int((model(a).argmax(1) == b).sum()) for a, b in DataLoader(test, batch_size=64)) / num_test)
