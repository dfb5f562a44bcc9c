"""A model that is tried out on zeros now and then, to see that it can be exported."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(120):
    x = torch.randn(32, 10)
    loss = nn.functional.cross_entropy(model.train()(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 29:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 10))
