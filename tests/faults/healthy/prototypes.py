"""Few-shot learning: queries are compared with the means of the other samples of their episode."""

import torch
from torch import nn


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 12))

    def forward(self, x):
        points = self.embed(x).view(5, 8, 12)
        means = points[:, :4].mean(1)
        return -torch.cdist(points[:, 4:].reshape(20, 12), means).square()


model = Prototypes()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for episode in range(120):
    centres = torch.randn(5, 1, 12)
    x = (centres + 0.4 * torch.randn(5, 8, 12)).view(40, 12)
    loss = nn.functional.cross_entropy(model(x), torch.arange(5).repeat_interleave(4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
