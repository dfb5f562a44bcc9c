"""exp overflows in fp16, inside a layer, when an outlier comes in step 7."""

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        grown = self.inner(x)
        return torch.exp(grown)  # here


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), Gate(), nn.Linear(8, 4)).half()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(12):
    x = torch.randn(16, 8) * (60 if step == 7 else 1)
    loss = nn.functional.cross_entropy(model(x.half()).float(), torch.randint(0, 4, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
