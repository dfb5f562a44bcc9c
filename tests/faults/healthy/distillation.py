"""A small network learns from a large one that is not trained any more."""

import torch
from torch import nn

teacher = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 5))
for parameter in teacher.parameters():
    parameter.data.mul_(2)
teacher.eval()
student = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))
optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(120):
    x = torch.randn(32, 12)
    with torch.no_grad():
        wanted = teacher(x)
    scores = student(x)
    soft = nn.functional.kl_div((scores / 3).log_softmax(-1), (wanted / 3).softmax(-1), reduction="batchmean") * 9
    loss = 0.7 * soft + 0.3 * nn.functional.cross_entropy(scores, wanted.argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
