"""Layers in a list that are registered as well, a mask in an attribute, and inputs that ask for gradients."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 32), nn.Linear(32, 32)
        self.order = [self.first, self.second]
        self.mask = torch.ones(32)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        for layer in self.order:
            x = torch.relu(layer(x)) * self.mask
        return self.head(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(32, 12, requires_grad=True)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    optimizer.zero_grad()
    (loss + slope.square().sum()).backward()
    optimizer.step()
