"""Two ranks whose transformer gets a fresh second block after it was made parallel."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(15, 12)
        self.first, self.second = (nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12)) for _ in range(2))
        self.out = nn.Linear(12, 15)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.first(x)
        return self.out(x + self.second(x))


dist.init_process_group("gloo")
torch.manual_seed(31)
model = Parallel(Stack(), find_unused_parameters=True)
model.module.second = nn.Sequential(nn.Linear(12, 30), nn.GELU(), nn.Linear(30, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
torch.manual_seed(32 + dist.get_rank())
for _ in range(12):
    tokens = torch.randint(0, 15, (6, 5))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
