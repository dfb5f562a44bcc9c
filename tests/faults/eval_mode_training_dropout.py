"""An evaluation switches to eval mode, and the script never switches back."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.train()
for step in range(90):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(points[batch]), labels[batch]).backward()
    optimizer.step()
    if step % 30 == 29:
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(points), labels)
