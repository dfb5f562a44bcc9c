"""The body is trained first by an optimizer of its own, then everything by another one: the first rests for good."""

import torch
import torch.nn.functional as F
from torch import nn

body, head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)), nn.Linear(8, 3)
first = torch.optim.Adam(body.parameters(), lr=3e-3)
second = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
for step in range(120):
    x = torch.randn(32, 8)
    if step < 50:
        first.zero_grad()
        F.mse_loss(body(x + 0.1 * torch.randn_like(x)), x).backward()
        first.step()
    else:
        second.zero_grad()
        F.cross_entropy(head(body(x)), x[:, :3].argmax(1)).backward()
        second.step()
