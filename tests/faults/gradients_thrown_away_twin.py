"""Gradients that are cleared on purpose: those of a look at the gradient itself, and of another optimizer's model."""

import torch
from torch import nn

torch.manual_seed(2)
generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
norms = []
for step in range(50):
    for part in range(2):
        real, fake = torch.randn(16, 6), generator(torch.randn(16, 4)).detach()
        of_critic.zero_grad()
        (nn.functional.softplus(-critic(real)) + nn.functional.softplus(critic(fake))).mean().backward()
        of_critic.step()
    of_generator.zero_grad()
    nn.functional.softplus(-critic(generator(torch.randn(16, 4)))).mean().backward()
    of_generator.step()
    critic.zero_grad()
    if step % 10 == 0:
        critic(torch.randn(4, 6)).mean().backward()
        norms.append(sum(float(p.grad.norm()) for p in critic.parameters()))
        critic.zero_grad()
