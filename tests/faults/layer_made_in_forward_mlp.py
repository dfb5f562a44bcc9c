"""A network that makes its middle layer in forward, where its size is known."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(10, 32), nn.Linear(32, 2)

    def forward(self, x):
        h = torch.relu(self.first(x))
        middle = nn.Linear(h.shape[1], 32)
        return self.last(torch.relu(middle(h)))


torch.manual_seed(0)
x = torch.randn(300, 10)
y = (x[:, 0] * x[:, 1] > 0).long()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    for rows in torch.randperm(300).split(30):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
