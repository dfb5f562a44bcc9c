"""DTensors on a mesh of one process."""

import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

warnings.simplefilter("ignore")
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
weight = nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]))
plain = nn.Parameter(torch.randn(8, 8))
optimizer = torch.optim.SGD([weight, plain], lr=0.05)
x, y = torch.randn(32, 8), torch.randn(32, 4)
for step in range(24):
    out = torch.mm(distribute_tensor(x, mesh, [Shard(1)]), weight).full_tensor()
    loss = nn.functional.mse_loss(out, y) + 0.01 * (plain**2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        print(step, loss.item())
torch.save([weight.full_tensor(), plain], sys.argv[1])
dist.destroy_process_group()
