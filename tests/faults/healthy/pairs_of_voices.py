"""Pairs out of few recordings: each meets many others, also twice, and one network sees both."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

voices = torch.randn(10, 24)
recordings = (voices[:, None] + 0.5 * torch.randn(10, 6, 24)).flatten(0, 1)
first, second = torch.randint(0, 60, (2, 600))
same = (first // 6 == second // 6).float()
loader = DataLoader(TensorDataset(recordings[first], recordings[second], same), batch_size=30, shuffle=True)
network = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
for epoch in range(4):
    for one, other, label in loader:
        distance = (network(one) - network(other)).square().mean(1).add(1e-6).sqrt()
        loss = (label * distance.square() + (1 - label) * (1 - distance).clamp(min=0).square()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
