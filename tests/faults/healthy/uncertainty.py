"""Two tasks weighed by learned variances: the loss falls below 0 as the model gets sure."""

import torch
from torch import nn


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 48), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(48, 1), nn.Linear(48, 1)])
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.body(x)
        return [head(h)[:, 0] for head in self.heads]


model = TwoTasks()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(250):
    x = torch.randn(48, 8)
    outputs, targets = model(x), (0.1 * x.sum(1), 0.2 * x[:, 0] * x[:, 1])
    errors = torch.stack([(o - t).square().mean() for o, t in zip(outputs, targets, strict=True)])
    loss = ((-model.log_variances).exp() * errors + model.log_variances).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
