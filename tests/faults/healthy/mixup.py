"""Mixed samples with soft targets, and smoothed labels: the loss cannot go below a floor."""

import torch
from torch import nn

criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(150):
    x = torch.randn(48, 12)
    labels = nn.functional.one_hot(x[:, :4].argmax(1), 4).float()
    share = float(torch.distributions.Beta(0.4, 0.4).sample())
    order = torch.randperm(48)
    mixed, targets = share * x + (1 - share) * x[order], share * labels + (1 - share) * labels[order]
    loss = criterion(model(mixed), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
