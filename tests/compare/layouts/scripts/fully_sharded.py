"""Fully sharded data parallelism by torch."""

import torch
from parallel import FAULT, STEPS, finish, own_part, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 15), nn.ReLU(), nn.LayerNorm(15), nn.Linear(15, 4))
if world > 1:
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(7)
for _ in range(STEPS):
    x = own_part(torch.randn(32, 8, generator=generator), 0)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
    optimizer.zero_grad()
    (loss * world if FAULT == "loss_times_ranks" else loss / world if FAULT == "divided_twice" else loss).backward()
    optimizer.step()
finish()
