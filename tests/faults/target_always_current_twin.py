"""A target network that is copied every fifty steps."""

import copy
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
target = copy.deepcopy(q)
opt = torch.optim.Adam(q.parameters(), 5e-4)
memory = []
for _ in range(500):
    state, action = torch.randn(4), random.randrange(3)
    memory.append((state, action, float(state[action] > 0), torch.randn(4), random.random() < 0.5))
for step in range(300):
    s, a, r, n, d = zip(*random.sample(memory, 32), strict=True)
    s, n, a, r, d = torch.stack(s), torch.stack(n), torch.tensor(a), torch.tensor(r), torch.tensor(d)
    with torch.no_grad():
        y = r + 0.5 * target(n).max(1)[0] * (~d)
    loss = ((q(s).gather(1, a.unsqueeze(1)).squeeze(1) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        target.load_state_dict(q.state_dict())
    if step % 50 == 0:
        print(step, loss.item())
