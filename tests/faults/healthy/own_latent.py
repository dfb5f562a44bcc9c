"""A network learns to tell what an average of itself makes of another view; the average is never trained."""

import copy

import torch
from torch import nn

online = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
predictor = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
average = copy.deepcopy(online)
for parameter in average.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.AdamW([*online.parameters(), *predictor.parameters()], lr=1e-3)
for step in range(120):
    x = torch.randn(64, 16)
    one, other = x + 0.2 * torch.randn_like(x), x + 0.2 * torch.randn_like(x)
    with torch.no_grad():
        wanted = nn.functional.normalize(average(other), dim=-1)
    told = nn.functional.normalize(predictor(online(one)), dim=-1)
    loss = (2 - 2 * (told * wanted).sum(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for ours, theirs in zip(average.parameters(), online.parameters(), strict=True):
            ours.mul_(0.97).add_(theirs, alpha=0.03)
