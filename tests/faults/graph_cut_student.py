"""A teacher is trained, then a student that learns from it; the student's body is detached from its head."""

import torch
import torch.nn.functional as F
from torch import nn


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x).relu().detach())


torch.manual_seed(2)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(50):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    F.cross_entropy(teacher(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
student = Student()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for _ in range(60):
    x = torch.randn(32, 8)
    with torch.no_grad():
        hints = teacher(x).softmax(1)
    optimizer.zero_grad()
    F.kl_div(student(x).log_softmax(1), hints, reduction="batchmean").backward()
    optimizer.step()
