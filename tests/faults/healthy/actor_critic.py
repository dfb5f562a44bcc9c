"""Clipped policy updates: several epochs over the same little rollout, two losses and an entropy bonus."""

import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h)[:, 0]


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
for rollout in range(12):
    states = torch.randn(64, 4)
    with torch.no_grad():
        choice, values = agent(states)
        actions = choice.sample()
        before = choice.log_prob(actions)
        rewards = states[torch.arange(64), actions] + 0.1 * torch.randn(64)
        advantages = rewards - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for epoch in range(4):
        for rows in torch.randperm(64).split(16):
            choice, values = agent(states[rows])
            ratio = (choice.log_prob(actions[rows]) - before[rows]).exp()
            gain = torch.min(ratio * advantages[rows], ratio.clamp(0.8, 1.2) * advantages[rows]).mean()
            loss = -gain + 0.5 * (values - rewards[rows]).square().mean() - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
