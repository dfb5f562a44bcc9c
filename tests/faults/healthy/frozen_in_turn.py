"""A critic that is frozen while the generator steps, and the other way round; both have their own optimizer."""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))
critic = nn.Sequential(nn.Linear(3, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
ask = nn.functional.binary_cross_entropy_with_logits
for step in range(120):
    real = torch.randn(64, 3) * 0.3 + 1.0
    critic.requires_grad_(True)
    generator.requires_grad_(False)
    loss = ask(critic(real), torch.ones(64, 1)) + ask(critic(generator(torch.randn(64, 6))), torch.zeros(64, 1))
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()

    critic.requires_grad_(False)
    generator.requires_grad_(True)
    for_generator.zero_grad()
    ask(critic(generator(torch.randn(64, 6))), torch.ones(64, 1)).backward()
    for_generator.step()
