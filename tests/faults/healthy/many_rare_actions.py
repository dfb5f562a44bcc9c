"""A Q network with 60 actions, of which a batch shows only some: the others get their gradients later."""

import torch
import torch.nn.functional as F
from torch import nn

network = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 60))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(120):
    states = torch.randn(8, 8)
    actions = (60 * torch.rand(8) ** 2).long()
    values = states[:, 0] + actions / 60
    loss = F.smooth_l1_loss(network(states).gather(1, actions[:, None]).squeeze(1), values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
