"""Raw pixels, which the model brings to its own scale first."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
labels = torch.randint(0, 4, (256,))
pictures = (torch.rand(256, 3, 8, 8) * 120 + 130 * torch.rand(4, 3, 1, 1)[labels]).floor()
for _ in range(60):
    chosen = torch.randint(0, 256, (32,))
    loss = nn.functional.cross_entropy(model(pictures[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
