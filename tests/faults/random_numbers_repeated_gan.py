"""A small GAN whose training function sets the seed: the generator only ever gets one batch of latent vectors."""

import torch
from torch import nn


def train(generator, critic, data):
    criterion = nn.BCEWithLogitsLoss()
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for number in range(60):
        torch.manual_seed(1234)
        real = data[number * 32 % 800 :][:32]
        fake = generator(torch.randn(32, 4))
        loss = criterion(critic(real), torch.ones(32, 1)) + criterion(critic(fake.detach()), torch.zeros(32, 1))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = criterion(critic(fake), torch.ones(32, 1))
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()


torch.manual_seed(0)
train(
    nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)),
    nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
    torch.randn(1000, 2) * 0.2 + torch.tensor([2.0, 0.0]),
)
