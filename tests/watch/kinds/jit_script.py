"""A scripted model is trained."""

import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        if bool(x.sum() > 1e9):
            return self.b(self.a(x))
        return self.b(torch.relu(self.a(x)))


@torch.jit.script
def penalty(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean()


torch.manual_seed(0)
model = torch.jit.script(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
for step in range(24):
    out = model(x)
    loss = nn.functional.cross_entropy(out, y) + 1e-3 * penalty(out)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
print(torch.jit.freeze(model.eval())(x).sum().item())
torch.save(model.state_dict(), sys.argv[1])
