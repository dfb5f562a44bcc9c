"""Two ranks that clip with limits which depend on the rank."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(28)
model = Parallel(nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(29 + rank)
for step in range(10):
    x = torch.randn(16, 7)
    loss = (model(x).squeeze(1) - 10 * x.sum(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0 / (1 + rank))
    optimizer.step()
dist.destroy_process_group()
