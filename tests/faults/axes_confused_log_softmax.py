"""A loss module of one's own takes its logarithms over the batch instead of over the classes."""

import torch
from torch import nn


class SmoothedLoss(nn.Module):
    def __init__(self, smoothing=0.1):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, scores, classes):
        logs = torch.log_softmax(scores, dim=0)
        return (1 - self.smoothing) * nn.functional.nll_loss(logs, classes) - self.smoothing * logs.mean()


torch.manual_seed(0)
table = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6))
criterion = SmoothedLoss()
optimizer = torch.optim.Adam(table.parameters(), lr=3e-3)
for step in range(40):
    x = torch.randn(24, 10)
    loss = criterion(table(x), x[:, :6].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
