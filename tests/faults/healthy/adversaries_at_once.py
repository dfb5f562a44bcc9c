"""Both players of an adversarial game go backward before either steps; neither loss falls."""

import torch
from torch import nn

maker = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 36), nn.Tanh())
judge = nn.Sequential(nn.Linear(36, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
makes = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
centres = torch.randn(4, 36)
data = torch.tanh(centres[torch.randint(0, 4, (1024,))] + 0.3 * torch.randn(1024, 36))
for _ in range(12):
    for real in data[torch.randperm(1024)].split(64):
        fake = maker(torch.randn(len(real), 8))
        makes.zero_grad()
        nn.functional.softplus(-judge(fake)).mean().backward()
        judges.zero_grad()
        loss = nn.functional.softplus(-judge(real)).mean() + nn.functional.softplus(judge(fake.detach())).mean()
        loss.backward()
        judges.step()
        makes.step()
