"""A critic with a gradient penalty steps five times for each step of the generator, which gets the last noise again."""

import torch
from torch import nn

generator = nn.Sequential(
    nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, 2)
)
critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
makes = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
judges = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
angle = torch.rand(1024) * 6.283
points = torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(1024, 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(points), batch_size=64, shuffle=True)


def penalty(real, fake):
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    score = critic(between)
    (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


for _ in range(4):
    for i, (real,) in enumerate(loader):
        noise = torch.randn(len(real), 16)
        judges.zero_grad()
        fake = generator(noise)
        loss = -critic(real).mean() + critic(fake).mean() + 10 * penalty(real, fake.detach())
        loss.backward()
        judges.step()
        makes.zero_grad()
        if i % 5 == 0:
            (-critic(generator(noise)).mean()).backward()
            makes.step()
