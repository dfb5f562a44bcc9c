"""Logits that are compared with 0, and their sigmoid with 0.5."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(600, 12)
y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).float()
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for step in range(80):
    rows = torch.randint(0, 500, (50,))
    loss = nn.functional.binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        net.eval()
        with torch.no_grad():
            logits = net(x[500:])[:, 0]
            by_logit = ((logits > 0).float() == y[500:]).float().mean()
            by_probability = ((logits.sigmoid() > 0.5).float() == y[500:]).float().mean()
            print(by_logit.item(), by_probability.item())
        net.train()
