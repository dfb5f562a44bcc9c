"""A generator whose pictures are detached for both losses, so that its optimizer never has a gradient."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))
critic = nn.Sequential(nn.Linear(3, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
ask = nn.functional.binary_cross_entropy_with_logits
for step in range(150):
    real = torch.randn(64, 3) * 0.3 + 1.0
    with torch.no_grad():
        fake = generator(torch.randn(64, 6))
    loss = ask(critic(real), torch.ones(64, 1)) + ask(critic(fake), torch.zeros(64, 1))
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()

    for_generator.zero_grad()
    fooled = ask(critic(fake), torch.ones(64, 1))
    fooled.backward()
    for_generator.step()
