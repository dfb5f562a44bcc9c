"""A generator steps on the critic's whole loss: the part about real samples does not depend on it."""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
for step in range(100):
    real = torch.randn(32, 2) * 0.1 + torch.tensor([1.0, 2.0])
    fake = generator(torch.randn(32, 4))
    gap = critic(real).mean() - critic(fake).mean()
    if step % 3:
        of_critic.zero_grad()
        (-gap).backward()
        of_critic.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.1, 0.1)
    else:
        of_generator.zero_grad()
        gap.backward()
        of_generator.step()
