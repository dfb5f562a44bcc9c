"""Fully sharded data parallel (the second one) over gloo."""

import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
mesh = torch.distributed.init_device_mesh("cpu", (2,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(rank)
for step in range(50):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x.argmax(1) % 4)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and rank == 0:
        print(step, loss.item())
torch.save({name: p.to_local() for name, p in model.state_dict().items()}, f"{sys.argv[1]}.{rank}")
torch.distributed.destroy_process_group()
