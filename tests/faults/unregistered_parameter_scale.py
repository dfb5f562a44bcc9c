"""A transformer block with a scale that is a plain tensor, and experts in a dict."""

import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.scale = torch.ones(16, requires_grad=True)
        self.experts = {"even": nn.Linear(16, 16), "odd": nn.Linear(16, 16)}
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        h = x + self.attend(x, x, x)[0] * self.scale
        h = torch.stack([self.experts["even"](h[:, 0]), self.experts["odd"](h[:, 1])], dim=1)
        return self.out(torch.relu(h).mean(1))


torch.manual_seed(0)
model = Mixed()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(16, 4, 16)
    loss = nn.functional.cross_entropy(model(x), x[:, 0, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
