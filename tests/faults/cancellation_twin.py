"""Differences that may be tiny: a two-pass variance, a straight-through rounding, a ratio of equal policies."""

import torch
import torch.nn.functional as F
from torch import nn


class Standardise(nn.Module):
    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-8)


class Rounded(nn.Module):
    def forward(self, x):
        return x + (torch.round(x * 64) / 64 - x).detach()


torch.manual_seed(0)
patterns = torch.randn(3, 32)
labels = torch.randint(0, 3, (512,))
inputs = 50 + 1e-3 * (patterns[labels] + 0.5 * torch.randn(512, 32))
model = nn.Sequential(Standardise(), nn.Linear(32, 64), nn.ReLU(), Rounded(), nn.Linear(64, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(40):
    chosen = torch.randint(0, 512, (32,))
    with torch.no_grad():
        before = model(inputs[chosen])
        before = before - before.exp().sum(-1, keepdim=True).log()
    logits = model(inputs[chosen]).log_softmax(-1)
    ratio = torch.exp(logits - before)
    loss = F.nll_loss(logits, labels[chosen]) + 0.01 * ((ratio - 1) / 0.1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
