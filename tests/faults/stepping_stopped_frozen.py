"""A model that computes its own loss, whose optimizer was given the frozen body instead of the head."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU()), nn.Linear(32, 3)

    def forward(self, x, labels=None):
        return F.cross_entropy(self.head(self.body(x)), labels)


torch.manual_seed(2)
model = Model()
model.body.requires_grad_(False)
optimizer = torch.optim.AdamW(model.body.parameters(), lr=1e-3)
for _ in range(60):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    model(x, labels=x[:, :3].argmax(1)).backward()
    optimizer.step()
