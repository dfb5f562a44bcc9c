"""A critic whose gradient penalty is computed without create_graph, so that it penalizes nothing."""

import torch
from torch import nn

torch.manual_seed(2)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
for step in range(60):
    real = torch.randn(32, 2) * 0.1 + torch.tensor([1.0, 2.0])
    fake = generator(torch.randn(32, 4)).detach()
    share = torch.rand(32, 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(mixed).sum(), mixed)[0]
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    if step % 5 == 0:
        of_generator.zero_grad()
        (-critic(generator(torch.randn(32, 4))).mean()).backward()
        of_generator.step()
