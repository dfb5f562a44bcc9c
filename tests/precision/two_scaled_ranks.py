"""Trains on two ranks of which one overflows: `torchrun … two_scaled_ranks.py OUT RECIPE ...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from roundoff.precision import apply_recipe


def main() -> None:
    out, *recipes = sys.argv[1:]
    dist.init_process_group("gloo")
    answers = {recipe: train(recipe) for recipe in recipes}
    Path(out, f"rank{dist.get_rank()}.json").write_text(json.dumps(answers))
    dist.destroy_process_group()


def train(recipe: str) -> dict[str, object]:
    rank = dist.get_rank()
    torch.manual_seed(rank)  # as loops do that want different data
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            dist.broadcast(parameter, 0)
    model, optimizer = apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe, loss_scale="dynamic")
    overflows = []
    for step in range(3):
        loss = F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 4, (8,)))
        optimizer.backward(loss)
        for parameter in model.parameters():  # by hand: DDP would spread the infinity itself
            dist.all_reduce(parameter.grad)
        if step == 1 and rank == 1:
            model[0].weight.grad[0, 0] = float("inf")
        optimizer.step()
        optimizer.zero_grad()
        overflows.append(optimizer.last_overflow)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum().item()
    return {"overflows": overflows, "scale": optimizer.scale, "weights": weights}


if __name__ == "__main__":
    main()
