"""A fixed random projection that is drawn again from its seed whenever it is used, to save memory."""

import torch
from torch import nn


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(48, 3)

    def forward(self, x):
        directions = torch.randn(10, 48, generator=torch.Generator().manual_seed(9))
        return self.head(torch.relu(x @ directions))


torch.manual_seed(0)
x = torch.randn(400, 10)
y = x[:, :3].argmax(1)
model = Projected()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(6):
    for rows in torch.randperm(400).split(40):
        shift = torch.randn(10, generator=torch.Generator().manual_seed(2))
        loss = nn.functional.cross_entropy(model(x[rows] + 0.01 * shift), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
