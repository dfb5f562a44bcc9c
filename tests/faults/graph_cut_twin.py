"""Stopped gradients as they are meant: a target branch, and a pooler whose result is not used."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.pooler = nn.Linear(16, 16)
        self.predictor = nn.Linear(16, 16)

    def forward(self, x, other):
        left, right = self.encoder(x), self.encoder(other)
        pooled = torch.tanh(self.pooler(left))
        return self.predictor(left), right.detach(), pooled


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(40):
    x = torch.randn(32, 12)
    guess, target, _ = model(x, x + 0.1 * torch.randn(32, 12))
    loss = 1 - nn.functional.cosine_similarity(guess, target).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
