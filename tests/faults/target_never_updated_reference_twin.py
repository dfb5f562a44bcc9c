"""A policy that is kept close to where it started: the reference is meant to stay, and gets the policy's own inputs."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
x = torch.randn(400, 6)
best = x[:, :4].argmax(1)
for _ in range(10):
    for rows in torch.randperm(400).split(40):
        scores = F.log_softmax(policy(x[rows]), dim=1)
        with torch.no_grad():
            before = F.log_softmax(reference(x[rows]), dim=1)
        reward = F.nll_loss(scores, best[rows])
        loss = reward + 0.1 * F.kl_div(scores, before, log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
