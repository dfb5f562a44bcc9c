"""The critic of a pair is trained five times as often as its partner."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
for_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for step in range(100):
    real = points[torch.randint(0, 512, (32,))]
    for_critic.zero_grad()
    (critic(generator(torch.randn(32, 8)).detach()).mean() - critic(real).mean()).backward()
    nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
    for_critic.step()
    if step % 5 == 4:
        for_generator.zero_grad()
        (-critic(generator(torch.randn(32, 8))).mean()).backward()
        for_generator.step()
