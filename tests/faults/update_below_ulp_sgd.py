"""Half-precision weights and SGD with a small learning rate: most updates round to nothing."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(6, 24)
labels = torch.randint(0, 6, (512,))
inputs = centres[labels] + 0.5 * torch.randn(512, 24)
model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(40):
    chosen = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(inputs[chosen].half()).float(), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
