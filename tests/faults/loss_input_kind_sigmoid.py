"""A sigmoid at the end of the model, and another inside the criterion."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return torch.sigmoid(self.head(self.body(x))).squeeze(1)


torch.manual_seed(2)
model = Detector()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(60):
    x = torch.randn(32, 1, 12, 12)
    y = (torch.rand(32) < 0.5).float()
    x = x + y[:, None, None, None]
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
