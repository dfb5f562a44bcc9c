"""Advantages are scaled by their spread; the last minibatch of an epoch has one sample only."""

import torch
from torch import nn

torch.manual_seed(2)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
states, actions = torch.randn(65, 4), torch.randint(0, 2, (65,))
rewards = (actions == (states[:, 0] > 0)).float() + 0.1 * torch.randn(65)
for _ in range(3):
    for rows in torch.arange(65).split(16):
        advantage = (rewards[rows] - rewards[rows].mean()) / (rewards[rows].std() + 1e-8)
        chosen = policy(states[rows]).log_softmax(1).gather(1, actions[rows, None]).squeeze(1)
        loss = -(advantage * chosen).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
