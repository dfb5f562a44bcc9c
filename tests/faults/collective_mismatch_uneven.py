"""Two ranks with data of different lengths, and a parallel model that wants a partner for each batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Parallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(33)
model = Parallel(nn.Sequential(nn.Linear(6, 18), nn.BatchNorm1d(18), nn.ReLU(), nn.Linear(18, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rows = torch.randn(90 if rank == 0 else 70, 6)
for x in rows.split(10):
    loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
