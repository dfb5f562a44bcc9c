"""A teacher is trained, then a student, whose last layer is a softmax before the cross entropy."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
teacher = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(50):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    F.cross_entropy(teacher(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(1))
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for _ in range(60):
    x = torch.randn(32, 8)
    with torch.no_grad():
        hints = teacher(x).softmax(1)
    guess = student(x)
    optimizer.zero_grad()
    (F.cross_entropy(guess, x[:, :4].argmax(1)) + 0.1 * F.mse_loss(guess, hints)).backward()
    optimizer.step()
