"""Two ranks with a residual network one of whose blocks is made and never called."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 16)
        self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.leave = nn.Linear(16, 3)

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks[:2]:
            h = h + torch.tanh(block(h))
        return self.leave(h)


dist.init_process_group("gloo")
torch.manual_seed(25)
model = Parallel(Residual())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(6):
    x = torch.randn(10, 6)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
