"""Q values gathered with a kept dimension against a target without it, in a smooth loss."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(2)
policy, target = (nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
for step in range(60):
    state, following = torch.randn(64, 4), torch.randn(64, 4)
    action, reward = torch.randint(0, 2, (64, 1)), torch.rand(64)
    chosen = policy(state).gather(1, action)
    with torch.no_grad():
        expected = reward + 0.9 * target(following).max(1).values
    loss = F.smooth_l1_loss(chosen, expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
