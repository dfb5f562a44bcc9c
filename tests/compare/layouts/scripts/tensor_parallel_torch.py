"""Tensor parallelism by torch: DTensors; with norms that see a part of the sequence, if asked."""

import torch
from parallel import FAULT, STEPS, finish, world
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate, self.up = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Network(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(20, dim)
        self.norm, self.feed = nn.LayerNorm(dim), FeedForward(dim)
        self.out = nn.Linear(dim, 20)

    def forward(self, tokens):
        return self.out(self.feed(self.norm(self.embedding(tokens))))


torch.manual_seed(0)
model = Network()
plan = {"feed.gate": ColwiseParallel(), "feed.up": ColwiseParallel(), "feed.down": RowwiseParallel()}
if FAULT.startswith("sequence"):
    plan |= {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    }
if world > 1:
    parallelize_module(model, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, foreach=False)
generator = torch.Generator().manual_seed(5)
for _ in range(STEPS):
    tokens = torch.randint(0, 20, (16, 8), generator=generator)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), ((tokens * 3 + 1) % 20).flatten())
    optimizer.zero_grad()
    (loss * (world if FAULT == "scaled_by_ranks" else 1)).backward()
    optimizer.step()
finish()
