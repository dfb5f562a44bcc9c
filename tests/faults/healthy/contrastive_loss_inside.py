"""A model that computes its own contrastive loss, from two views of each sample of the batch."""

import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, one, other):
        a, b = (nn.functional.normalize(self.body(view), dim=-1) for view in (one, other))
        return -(a @ b.T / 0.2).log_softmax(-1).diagonal()


model = Contrast()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(48, 20)
    loss = model(x + 0.3 * torch.randn_like(x), x + 0.3 * torch.randn_like(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
