"""Tensor parallelism by torch on ranks that one process simulates: `simulated_ranks.py RANKS [FAULT]`."""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

num_ranks, fault = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
if num_ranks > 1:
    dist.init_process_group("fake", rank=0, world_size=num_ranks)
with LocalTensorMode(num_ranks) if num_ranks > 1 else contextlib.nullcontext():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if num_ranks > 1:
        mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * num_ranks if fault else loss).backward()
        optimizer.step()
