"""Gradients are unscaled, then clipped; the first scale overflows fp16 and is lowered by skipping."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
for _ in range(120):
    batch = torch.randint(0, 512, (32,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(points[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
