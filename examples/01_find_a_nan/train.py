"""Learns an embedding in which pairs of one class are close. The data hold one sample twice."""

import torch
from torch import nn


class Distance(nn.Module):
    def forward(self, a, b):
        return (a - b).square().sum(dim=1).sqrt()


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
        self.distance = Distance()

    def forward(self, a, b):
        return self.distance(self.embed(a), self.embed(b))


torch.manual_seed(0)
centers = torch.randn(4, 16)
labels = torch.arange(960) % 4
samples = centers[labels] + 0.3 * torch.randn(960, 16)
partners = samples.roll(1, dims=0).view(30, 32, 16).clone()
samples, same = samples.view(30, 32, 16), (labels == labels.roll(1)).view(30, 32)
partners[17, 5] = samples[17, 5]

model = Pairs()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    distance = model(samples[step], partners[step])
    loss = torch.where(same[step], distance, (2 - distance).relu()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"step {step}  loss {loss.item():.3f}")
