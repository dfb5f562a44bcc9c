"""Old log-probabilities are kept from before the update."""

import torch
from torch import nn

torch.manual_seed(0)
prizes = torch.tensor([0.1, 0.5, 0.9, 0.3])
actor = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(actor.parameters(), 3e-3)
for _ in range(20):
    states = torch.randn(64, 6)
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=actor(states)).sample()
        before = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)
    rewards = prizes[actions] + 0.05 * torch.randn(64)
    advantages = rewards - rewards.mean()
    for _ in range(4):
        probabilities = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)
        ratio = torch.exp(probabilities - before)
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(rewards.mean().item())
