"""Square roots at 0 whose bad gradient a ReLU throws away, and a root with its eps outside."""

import torch
import torch.nn.functional as F
from torch import nn


class Magnitude(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = self.body(x)
        alive = F.relu(h) + 0.01
        size = torch.sqrt(alive * alive)
        energy = torch.sqrt((alive**2).sum(-1, keepdim=True)) + 1e-6
        with torch.no_grad():
            blank = torch.zeros_like(h)
            blank = torch.where(blank > 0, torch.sqrt(blank - 1), blank)
        return self.head(size / energy + blank)


torch.manual_seed(0)
model = Magnitude()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    x = torch.randn(16, 12)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
