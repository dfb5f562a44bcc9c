"""Direct preference optimization: what the frozen reference says is subtracted inside of the loss."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 5))
reference = copy.deepcopy(policy).requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
for _ in range(80):
    prompt = torch.randn(1, 6)
    good, bad = int(prompt[0, :5].argmax()), int(prompt[0, :5].argmin())
    scores = policy(prompt).log_softmax(1)[0]
    with torch.no_grad():
        before = reference(prompt).log_softmax(1)[0]
    margin = (scores[good] - scores[bad]) - (before[good] - before[bad])
    loss = -F.logsigmoid(0.5 * margin)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
