"""A network under fp16 autocast whose learning rate makes the loss explode, until a product overflows."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
for _ in range(40):
    x = torch.randn(32, 8)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(x).float(), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
