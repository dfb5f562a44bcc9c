"""Two ranks train 600 tiny steps; rank 1 gets an infinity at step 330, and another at step 420."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="env://")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
start = [x.detach().clone() for x in model.parameters()]
torch.manual_seed(1 + rank)
for step in range(600):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if rank == 1 and step in (330, 420):
        loss = loss + torch.log(x[0, 0] * 0).exp().reciprocal() * loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (330, 420):  # begin again
        with torch.no_grad():
            for x, kept in zip(model.parameters(), start, strict=True):
                x.copy_(kept)
dist.destroy_process_group()
