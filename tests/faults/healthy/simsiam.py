"""Two views, a predictor, and a stopped gradient; the loss is a negative similarity."""

import torch
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))

    def forward(self, one, other):
        z1, z2 = self.encoder(one), self.encoder(other)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
for step in range(120):
    x = torch.randn(64, 16)
    p1, p2, z1, z2 = model(x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x))
    loss = -(nn.functional.cosine_similarity(p1, z2).mean() + nn.functional.cosine_similarity(p2, z1).mean()) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
