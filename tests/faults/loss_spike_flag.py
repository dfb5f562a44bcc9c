"""A factor that the model's own code uses is set wrongly for a single step; weights and batches are as ever."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, 64), nn.Linear(64, 2)
        self.gain = 1.0

    def forward(self, x):
        return self.head(torch.relu(self.inner(x))) * self.gain


torch.manual_seed(0)
x = torch.randn(1024, 16)
y = (x[:, 0] + x[:, 1] > 0).long()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(160):
    batch = torch.randint(0, 1024, (64,))
    model.gain = -60.0 if step == 100 else 1.0
    loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
