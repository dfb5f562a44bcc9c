"""A loss written as -log(softmax(x)), with inputs so large that a probability rounds to 0."""

import torch
from torch import nn

torch.manual_seed(0)
centres = torch.randn(6, 12)
labels = torch.randint(0, 6, (512,))
inputs = centres[labels] + 0.5 * torch.randn(512, 12)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(12):
    chosen = torch.randint(0, 512, (32,))
    x = inputs[chosen] * (50 if step < 4 else 500)
    probabilities = torch.softmax(model(x), dim=-1)
    loss = -torch.log(probabilities)[torch.arange(32), labels[chosen]].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
