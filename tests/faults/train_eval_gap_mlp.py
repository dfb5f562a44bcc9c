"""A norm written by hand: it uses the batch in training, and statistics that are never updated in evaluation."""

import torch
from torch import nn


class OwnNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x):
        if self.training:
            return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()
        return (x - self.mean) / (self.variance + 1e-5).sqrt()


torch.manual_seed(0)
labels = torch.randint(0, 5, (512,))
points = torch.randn(5, 16)[labels] + 0.3 * torch.randn(512, 16) + 3
model = nn.Sequential(nn.Linear(16, 64), OwnNorm(64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(150):
    chosen = torch.randint(0, 512, (64,))
    loss = nn.functional.cross_entropy(model(points[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
