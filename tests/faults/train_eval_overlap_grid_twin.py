"""Inputs of a few whole numbers, of which there are not many: training and test set share some by chance."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randint(0, 3, (400, 4)).float()
y = (x.sum(1) > 4).long()
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(8):
    model.train()
    for rows in torch.randperm(320).split(40):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(float((model(x[320:]).argmax(1) == y[320:]).float().mean()))
