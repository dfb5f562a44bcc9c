"""Two losses go backward one after the other through one graph, and then both at once."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
body, head, other = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 2)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters(), *other.parameters()], lr=1e-2)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    hidden = torch.relu(body(x))
    first = nn.functional.cross_entropy(head(hidden), y)
    second = nn.functional.cross_entropy(other(hidden), y % 2)
    optimizer.zero_grad()
    if step % 2:
        first.backward(retain_graph=True)
        second.backward()
    else:
        torch.autograd.backward([first, second])
    optimizer.step()
    if step % 6 == 0:
        print(step, first.item(), second.item())
torch.save([m.state_dict() for m in (body, head, other)], sys.argv[1])
