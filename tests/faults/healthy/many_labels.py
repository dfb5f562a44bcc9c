"""Many labels for each place: scores and targets are cut alike, which an elementwise loss does not mind."""

import torch
from torch import nn

net = nn.Sequential(nn.Conv1d(3, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 6, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(80):
    waves = torch.randn(16, 3, 20)
    labels = (torch.cat([waves, -waves], 1) > 0).float()
    scores = net(waves)
    loss = nn.functional.binary_cross_entropy_with_logits(scores.view(-1, 6), labels.view(-1, 6))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
