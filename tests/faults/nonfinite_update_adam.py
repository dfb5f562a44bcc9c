"""Half-precision weights and plain Adam, whose eps of 1e-8 is 0 in that format."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(5, 20)
labels = torch.randint(0, 5, (256,))
inputs = centres[labels] + 0.5 * torch.randn(256, 20)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5)).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    chosen = torch.randint(0, 256, (32,))
    loss = F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
