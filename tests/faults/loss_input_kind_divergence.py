"""Distillation: the student's probabilities, not their logarithms, go into kl_div."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
teacher, student = nn.Linear(12, 6), nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(60):
    x = torch.randn(32, 12)
    with torch.no_grad():
        wanted = F.softmax(teacher(x) * 3, dim=-1)
    loss = F.kl_div(F.softmax(student(x), dim=-1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
