"""A half-precision network whose loss is weighted by 1e-5, without loss scaling."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(8, 32)
labels = torch.randint(0, 8, (512,))
inputs = centres[labels] + 0.5 * torch.randn(512, 32)
model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e4)
for step in range(30):
    chosen = torch.randint(0, 512, (64,))
    loss = 1e-5 * F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
