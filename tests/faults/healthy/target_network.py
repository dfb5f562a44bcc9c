"""A Q network and its target: the target is copied every 25 steps, as a whole, and evaluated all the time."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

network = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(network).eval().requires_grad_(False)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
for step in range(120):
    states, actions, later = torch.randn(32, 4), torch.randint(0, 2, (32, 1)), torch.randn(32, 4)
    with torch.no_grad():
        goal = (actions[:, 0] == (states[:, 0] > 0)).float() + 0.5 * target(later).max(1).values
    loss = F.smooth_l1_loss(network(states).gather(1, actions).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 24:
        target.load_state_dict(network.state_dict())
