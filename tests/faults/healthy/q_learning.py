"""Q-learning with a buffer and a target network: the loss goes up when the target moves, and now and then jumps."""

import copy
import random

import torch
from torch import nn

network = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 3))
target = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
buffer = []
state = torch.randn(3)
for step in range(600):
    with torch.no_grad():
        action = random.randrange(3) if random.random() < 0.2 else int(network(state).argmax())
    following = (0.9 * state + 0.5 * torch.eye(3)[action] + 0.1 * torch.randn(3)).clamp(-3, 3)
    reward = float(following[0] - following[1] ** 2) + (10.0 if random.random() < 0.01 else 0.0)
    buffer.append((state, action, reward, following))
    state = torch.randn(3) if step % 40 == 39 else following
    if len(buffer) < 64 or step % 3:
        continue
    chosen = random.sample(buffer, 32)
    states, nexts = torch.stack([c[0] for c in chosen]), torch.stack([c[3] for c in chosen])
    actions, rewards = torch.tensor([c[1] for c in chosen]), torch.tensor([c[2] for c in chosen])
    with torch.no_grad():
        wanted = rewards + 0.9 * target(nexts).max(-1).values
    loss = nn.functional.smooth_l1_loss(network(states).gather(1, actions[:, None])[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    optimizer.step()
    if step % 90 == 0:
        target.load_state_dict(network.state_dict())
