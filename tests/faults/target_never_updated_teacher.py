"""Self-distillation with a teacher that should follow the student: its update assigns to a name, not to the weights."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


def follow(teacher, student):
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow = 0.99 * slow + 0.01 * fast


torch.manual_seed(0)
x = torch.randn(400, 16)
student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
teacher = copy.deepcopy(student).requires_grad_(False)
guess = nn.Linear(16, 16)
optimizer = torch.optim.Adam([*student.parameters(), *guess.parameters()], lr=1e-3)
for _ in range(10):
    for rows in torch.randperm(400).split(40):
        one, other = x[rows] + 0.1 * torch.randn(40, 16), x[rows] + 0.1 * torch.randn(40, 16)
        with torch.no_grad():
            wanted = teacher(other)
        loss = 1 - F.cosine_similarity(guess(student(one)), wanted).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student)
