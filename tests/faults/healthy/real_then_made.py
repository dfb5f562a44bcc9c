"""A critic that is shown real samples, then made ones, in steps of their own."""

import torch
from torch import nn

generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
ask = nn.BCEWithLogitsLoss()
for step in range(80):
    for samples, answer in ((torch.randn(32, 2) + 2, 1.0), (generator(torch.randn(32, 4)).detach(), 0.0)):
        loss = ask(critic(samples), torch.full((32, 1), answer))
        for_critic.zero_grad()
        loss.backward()
        for_critic.step()
    for_generator.zero_grad()
    ask(critic(generator(torch.randn(32, 4))), torch.ones(32, 1)).backward()
    for_generator.step()
