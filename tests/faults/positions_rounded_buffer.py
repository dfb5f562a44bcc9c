"""A model that counts its places in a buffer is cast to bf16 as a whole."""

import torch
from torch import nn


class Places(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.arange(2500.0))
        self.out = nn.Linear(2, 1)

    def forward(self, x):
        near = (self.places - x[:, :1]).abs().mul(-1e-3)
        return self.out(torch.cat([x, near.amax(1, keepdim=True)], 1)[:, :2])


torch.manual_seed(0)
model = Places().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(30):
    x = torch.rand(16, 1).to(torch.bfloat16)
    loss = nn.functional.mse_loss(model(x).float(), 2 * x.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
