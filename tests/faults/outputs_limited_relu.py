"""A regression to numbers of both signs whose last layer has a ReLU."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 1)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


torch.manual_seed(0)
x = torch.randn(500, 6)
y = x @ torch.randn(6, 1)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(80):
    rows = torch.randint(0, 500, (50,))
    loss = nn.functional.mse_loss(net(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
