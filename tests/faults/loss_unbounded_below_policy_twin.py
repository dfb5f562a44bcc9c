"""A policy gradient: its loss has either sign and says little."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
policy = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
for _ in range(150):
    batch = torch.randint(0, 512, (64,))
    choice = torch.distributions.Categorical(logits=policy(points[batch]))
    action = choice.sample()
    reward = (action == labels[batch]).float()
    loss = -(choice.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * choice.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
