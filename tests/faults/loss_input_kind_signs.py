"""A classifier of two classes whose labels are -1 and 1, with a loss that wants 0 and 1."""

import torch
from torch import nn


class Criterion(nn.Module):
    def forward(self, scores, labels):
        return nn.functional.binary_cross_entropy_with_logits(scores, labels)


torch.manual_seed(0)
points = torch.randn(256, 10)
labels = (points[:, 0] - points[:, 3]).sign()
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = Criterion()
for step in range(60):
    batch = torch.randint(0, 256, (32,))
    loss = criterion(model(points[batch]).squeeze(1), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
