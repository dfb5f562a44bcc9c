"""Linear layers and batch norm under autocast; in one batch a product overflows, and the step is skipped."""

import torch
import torch.nn.functional as F
from torch import nn


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(12, 40)
        self.steady = nn.BatchNorm1d(40, momentum=0.2)
        self.down = nn.Linear(40, 3)

    def forward(self, x):
        h = self.up(x)
        return self.down(F.gelu(self.steady(h * h)))


torch.manual_seed(19)
tower = Tower()
optimizer = torch.optim.AdamW(tower.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
for step in range(12):
    rows = torch.randn(20, 12)
    kinds = rows[:, :3].argmax(1)
    if step == 5:
        rows[2] *= 3000
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(tower(rows), kinds)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(tower.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
