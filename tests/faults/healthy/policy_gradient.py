"""Policy gradient on a little walk: the loss is negative, rises while the policy gets better, and is full of spikes."""

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(120):
    place, goal = torch.zeros(16), torch.randn(16) * 3
    log_probabilities, rewards = [], []
    for _ in range(8):
        choice = torch.distributions.Categorical(logits=policy(torch.stack([place, goal], -1)))
        action = choice.sample()
        place = place + (2 * action - 1) * 0.5
        log_probabilities.append(choice.log_prob(action))
        rewards.append(-(place - goal).abs())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probabilities) * (returns - returns.mean())).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
