"""Slots that compete for places: a softmax over the slots, made into means; groups normalized by hand."""

import torch
from torch import nn


class Slots(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Conv1d(4, 24, 1)
        self.slots = nn.Parameter(torch.randn(1, 8, 24))
        self.key, self.value, self.query = (nn.Linear(24, 24) for _ in range(3))
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        h = self.inputs(x)
        n, channels, length = h.shape
        groups = h.view(n, 6, -1)
        h = ((groups - groups.mean(2, keepdim=True)) / (groups.std(2, keepdim=True) + 1e-5)).view_as(h)
        h = h.view(n, 2, channels // 2, length).transpose(1, 2).reshape(n, channels, length)
        places = torch.relu(h).transpose(1, 2)
        slots = self.slots.expand(n, -1, -1)
        for _ in range(2):
            scores = self.query(slots) @ self.key(places).transpose(1, 2) / channels**0.5
            weights = torch.softmax(scores, dim=1)
            weights = weights / weights.sum(2, keepdim=True)
            slots = slots + weights @ self.value(places)
        return self.head(slots.mean(1))


model = Slots()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(100):
    x = torch.randn(32, 4, 8)
    loss = nn.functional.mse_loss(model(x), x.abs().mean(2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
