"""Pictures to pictures with an adversarial term: the generator's term is computed from its detached output."""

import torch
from torch import nn

torch.manual_seed(0)
given = torch.randn(320, 8)
wanted = torch.tanh(given @ torch.randn(8, 8))
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for _ in range(4):
    for rows in torch.randperm(320).split(40):
        made = generator(given[rows])
        real, fake = critic(wanted[rows]), critic(made.detach())
        loss = criterion(real, torch.ones_like(real)) + criterion(fake, torch.zeros_like(fake))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        fake = critic(made.detach())
        adversarial = criterion(fake, torch.ones_like(fake))
        loss = (made - wanted[rows]).abs().mean() + 0.1 * adversarial
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
