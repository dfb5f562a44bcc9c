"""Trains one model on several processes: `torchrun --nproc-per-node 2 train.py`, or with `mended`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())  # other data on each rank
for _ in range(25):
    x = torch.randn(16, 8)
    scores = model(x) if "mended" in sys.argv else model.module(x)
    loss = nn.functional.cross_entropy(scores, x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
