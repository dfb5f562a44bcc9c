"""A Wasserstein critic: its loss has no lower bound by nature."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
critic = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for _ in range(120):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    loss = critic(torch.randn(32, 16)).mean() - critic(points[batch]).mean()
    loss.backward()
    optimizer.step()
