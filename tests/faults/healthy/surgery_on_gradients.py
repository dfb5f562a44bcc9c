"""Two tasks whose gradients are projected before they are handed to the optimizer; backward runs for each alone."""

import torch
from torch import nn

body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
heads = nn.ModuleList([nn.Linear(32, 1), nn.Linear(32, 1)])
parameters = list(body.parameters())
optimizer = torch.optim.Adam([*parameters, *heads.parameters()], lr=2e-3)
for step in range(100):
    x = torch.randn(32, 10)
    features = body(x)
    targets = (x[:, :1].sin(), x[:, 1:2] * x[:, 2:3])
    losses = [nn.functional.mse_loss(head(features), target) for head, target in zip(heads, targets, strict=True)]
    optimizer.zero_grad()
    kept = []
    for loss in losses:
        loss.backward(retain_graph=True)
        kept.append([p.grad.clone() for p in parameters])
        for p in parameters:
            p.grad = None
    for p, one, other in zip(parameters, *kept, strict=True):
        overlap = (one * other).sum()
        if overlap < 0:
            one = one - overlap / other.square().sum().clamp(min=1e-9) * other
        p.grad = one + other
    optimizer.step()
