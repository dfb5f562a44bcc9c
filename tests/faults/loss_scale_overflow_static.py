"""A half-precision network with a static loss scale of 2**24."""

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 2.0**24

torch.manual_seed(0)
centres = torch.randn(6, 24)
labels = torch.randint(0, 6, (512,))
inputs = centres[labels] + 0.5 * torch.randn(512, 24)
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 6)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    chosen = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    (loss * SCALE).backward()
    for parameter in model.parameters():
        parameter.grad.div_(SCALE)
    optimizer.step()
    print(step, loss.item())
