"""A policy is improved by the ratio of its probabilities to the old ones, which are computed anew each time."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
value = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-3)
best = torch.randn(4, 3)
for _ in range(10):
    with torch.no_grad():
        seen = torch.randn(256, 4)
        actions = torch.distributions.Categorical(logits=policy(seen)).sample()
        rewards = (seen @ best).gather(1, actions[:, None]).squeeze(1)
        gains = rewards - value(seen).squeeze(1)
        gains = (gains - gains.mean()) / gains.std()
    for part in torch.randperm(256).split(64):
        chosen = torch.distributions.Categorical(logits=policy(seen[part])).log_prob(actions[part])
        before = torch.distributions.Categorical(logits=policy(seen[part])).log_prob(actions[part])
        ratio = (chosen - before).exp()
        limited = ratio.clamp(0.8, 1.2)
        improvement = torch.min(ratio * gains[part], limited * gains[part]).mean()
        error = (value(seen[part]).squeeze(1) - rewards[part]).square().mean()
        optimizer.zero_grad()
        (0.5 * error - improvement).backward()
        nn.utils.clip_grad_norm_([*policy.parameters(), *value.parameters()], 0.5)
        optimizer.step()
    print(rewards.mean().item())
