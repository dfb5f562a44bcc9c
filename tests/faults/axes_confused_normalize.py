"""A critic of a small control task: features are scaled to length 1 over the batch instead of over themselves."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
        self.value = nn.Linear(16, 1)

    def forward(self, state, action):
        h = nn.functional.normalize(self.body(torch.cat([state, action], 1)), dim=0)
        return self.value(h).squeeze(1)


torch.manual_seed(0)
critic = Critic()
optimizer = torch.optim.Adam(critic.parameters(), lr=3e-3)
for step in range(40):
    state, action = torch.randn(32, 4), torch.rand(32, 2) * 2 - 1
    returns = (state[:, :2] * action).sum(1)
    loss = nn.functional.smooth_l1_loss(critic(state, action), returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
