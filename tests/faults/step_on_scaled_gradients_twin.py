"""One loss is scaled and unscaled by hand, another optimizer works without a scaler."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
probe = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
plain = torch.optim.Adam(probe.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
for _ in range(60):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(points[batch]), labels[batch])).backward()
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.update()
    plain.zero_grad()
    F.cross_entropy(probe(points[batch]), labels[batch]).backward()
    plain.step()
