"""A square root inside a mask: the loss is finite, and the gradients are NaN."""

import torch
import torch.nn.functional as F
from torch import nn


class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(12, 24)
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = self.body(x)
        return self.head(torch.where(h > 0, torch.sqrt(h), 0.0))


torch.manual_seed(0)
model = Rooted()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(16, 12)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
