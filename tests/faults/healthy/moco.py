"""Momentum contrast: the right answer is always number 0, and an averaged copy encodes the keys."""

import copy

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 12))
keys = copy.deepcopy(encoder).requires_grad_(False)
queue = nn.functional.normalize(torch.randn(256, 12), dim=-1)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05, momentum=0.9)
for step in range(150):
    x = torch.randn(32, 16)
    query = nn.functional.normalize(encoder(x + 0.2 * torch.randn_like(x)), dim=-1)
    with torch.no_grad():
        for ours, theirs in zip(keys.parameters(), encoder.parameters(), strict=True):
            ours.lerp_(theirs, 0.01)
        key = nn.functional.normalize(keys(x + 0.2 * torch.randn_like(x)), dim=-1)
    logits = torch.cat([(query * key).sum(-1, keepdim=True), query @ queue.T], -1) / 0.2
    loss = nn.functional.cross_entropy(logits, torch.zeros(32, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([key, queue])[:256]
