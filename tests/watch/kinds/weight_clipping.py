"""A Wasserstein critic: two losses, RMSprop, weights clipped through .data after each step."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
generator = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
for_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
one, minus_one = torch.tensor(1.0), torch.tensor(-1.0)
for step in range(13):
    for _ in range(3):
        for_critic.zero_grad()
        critic(torch.randn(16, 2) + 1).mean().backward(minus_one)
        with torch.no_grad():
            fake = generator(torch.randn(16, 3))
        critic(fake).mean().backward(one)
        for_critic.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.05, 0.05)
    for_generator.zero_grad()
    loss = -critic(generator(torch.randn(16, 3))).mean()
    loss.backward()
    for_generator.step()
    if step % 5 == 0:
        print(step, loss.item())
torch.save({"critic": critic.state_dict(), "generator": generator.state_dict()}, sys.argv[1])
