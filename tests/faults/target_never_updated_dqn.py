"""Q-learning from a replay buffer whose target network is copied once, before the training, and never again."""

import copy
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
values = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(values)
optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
pushes, state, memory = torch.randn(2, 4), torch.randn(4), []
for _ in range(260):
    with torch.no_grad():
        action = int(values(state).argmax()) if random.random() > 0.2 else random.randrange(2)
    following = 0.9 * state + 0.3 * pushes[action] + 0.1 * torch.randn(4)
    done = random.random() < 0.05
    memory.append((state, action, -float(following.square().mean()), following, float(done)))
    state = torch.randn(4) if done else following
    if len(memory) < 64:
        continue
    batch = list(zip(*random.sample(memory, 32), strict=True))
    before, after = torch.stack(batch[0]), torch.stack(batch[3])
    actions, rewards, ends = torch.tensor(batch[1]), torch.tensor(batch[2]), torch.tensor(batch[4])
    with torch.no_grad():
        wanted = rewards + 0.9 * (1 - ends) * target(after).max(1).values
    loss = nn.functional.smooth_l1_loss(values(before).gather(1, actions[:, None])[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
