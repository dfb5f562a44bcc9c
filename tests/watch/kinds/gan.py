"""A generator and a discriminator, an optimizer and a loss for each, in turn."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
for step in range(25):
    real = torch.randn(16, 2) * 0.5 + 1
    fake = generator(torch.randn(16, 4))
    for_discriminator.zero_grad()
    loss_real = criterion(discriminator(real), ones)
    loss_real.backward()
    loss_fake = criterion(discriminator(fake.detach()), zeros)
    loss_fake.backward()
    for_discriminator.step()
    for_generator.zero_grad()
    loss = criterion(discriminator(fake), ones)
    loss.backward()
    for_generator.step()
    if step % 10 == 0:
        print(step, loss_real.item() + loss_fake.item(), loss.item())
torch.save({"generator": generator.state_dict(), "discriminator": discriminator.state_dict()}, sys.argv[1])
