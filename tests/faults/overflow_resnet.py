"""Autocast to fp16 without a norm after the second convolution: its weights are scaled up once, after a few steps."""

import torch
import torch.nn.functional as F
from torch import nn


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x))))


torch.manual_seed(3)
model = nn.Sequential(Stem(), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for iteration in range(9):
    if iteration == 4:
        state = model.state_dict()
        state["0.second.weight"] *= 3e5
        model.load_state_dict(state)
    images, targets = torch.randn(8, 3, 12, 12), torch.randint(0, 10, (8,))
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(images), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(iteration, float(loss))
