"""A generator that is stepped from the beginning, without a loss until its critic has had some steps."""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))
critic = nn.Sequential(nn.Linear(3, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
ask = nn.functional.binary_cross_entropy_with_logits
for step in range(200):
    real = torch.randn(64, 3) * 0.3 + 1.0
    fake = generator(torch.randn(64, 6))
    loss = ask(critic(real), torch.ones(64, 1)) + ask(critic(fake.detach()), torch.zeros(64, 1))
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()

    for_generator.zero_grad()
    if step >= 10:
        fooled = ask(critic(fake), torch.ones(64, 1))
        fooled.backward()
    for_generator.step()
