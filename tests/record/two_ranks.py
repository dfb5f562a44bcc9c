"""Trains a small model on two ranks; `torchrun … two_ranks.py ddp|fsdp OUT [--record RUN]`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

from roundoff.record import recording


def main() -> None:
    kind, out, *record = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        fully_shard(model[0])
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    with recording(to=record[0] if record else "unused", steps=range(3), enabled=bool(record)):
        for _ in range(3):
            x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    state = {
        key: (value.full_tensor() if hasattr(value, "full_tensor") else value)
        for key, value in model.state_dict().items()
    }
    torch.save({"losses": losses, "state": state}, f"{out}-{dist.get_rank()}.pt")
    dist.barrier()
    os._exit(0)  # freeing gloo's groups can abort a process whose tensors its threads still give back


if __name__ == "__main__":
    main()
