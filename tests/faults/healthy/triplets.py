"""Triplets and a margin: in time most of them cost nothing, and the loss is often exactly 0."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 8))
criterion = nn.TripletMarginLoss(margin=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
centres = torch.randn(6, 10) * 2
for step in range(150):
    kinds = torch.randint(0, 6, (32,))
    others = (kinds + torch.randint(1, 6, (32,))) % 6
    anchor, same, other = (centres[k] + 0.5 * torch.randn(32, 10) for k in (kinds, kinds, others))
    loss = criterion(model(anchor), model(same), model(other))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
