"""A pretrained net gets a new head for another task, but the optimizer was made for the old one."""

import torch
from torch import nn

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
net = nn.ModuleDict({"body": body, "head": nn.Linear(32, 5)})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = net["body"], net["head"]

    def forward(self, x):
        return self.head(self.body(x))


def batch(num_classes):
    x = torch.randn(32, 12)
    return x, x[:, :num_classes].argmax(1)


def train(model, optimizer, num_classes, num_steps):
    for _ in range(num_steps):
        x, y = batch(num_classes)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(num_classes, loss.item())


model = Net()
train(model, torch.optim.Adam(model.parameters(), lr=2e-3), 5, 80)
for parameter in model.parameters():
    parameter.requires_grad_(False)
for parameter in model.head.parameters():
    parameter.requires_grad_(True)
optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
model.head = nn.Linear(32, 3)
train(model, optimizer, 3, 120)
