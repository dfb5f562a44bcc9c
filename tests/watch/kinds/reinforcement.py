"""Learns a policy by REINFORCE; every episode starts from zeros."""

import sys

import torch

torch.manual_seed(0)
policy = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
goal = torch.tensor([1.0, 0.0, 0.5])
for episode in range(12):
    state, terms, rewards = torch.zeros(1, 3), [], []
    for _ in range(6):
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        terms.append(choice.log_prob(action))
        state = state + (action.float() - 0.4) * 0.3 + 0.05 * torch.randn(1, 3)
        rewards.append(-(state - goal).square().sum().item())
    loss = torch.stack([-term * (sum(rewards[i:]) + 5) for i, term in enumerate(terms)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, loss.item())
torch.save(policy.state_dict(), sys.argv[1])
