"""Each step looks for hard examples in eval mode, and learns from them in training mode."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(4, 16) * 2
labels = torch.randint(0, 4, (512,))
points = centres[labels] + torch.randn(512, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(60):
    batch = torch.randint(0, 512, (32,))
    x = points[batch].clone().requires_grad_()
    model.eval()
    F.cross_entropy(model(x), labels[batch]).backward()
    hard = (x + 0.1 * x.grad.sign()).detach()
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(hard), labels[batch]).backward()
    optimizer.step()
