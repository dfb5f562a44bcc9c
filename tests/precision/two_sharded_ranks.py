"""Trains weights that FSDP2 divides, and the same weights copied: `torchrun … two_sharded_ranks.py OUT RECIPE ...`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from roundoff.errors import RecipeError
from roundoff.precision import RecipeOptimizer, apply_recipe


def main() -> None:
    out, *recipes = sys.argv[1:]
    dist.init_process_group("gloo")
    answers = {
        "native": refusal_of_native_arithmetic(),
        **{recipe: {"shift": shift(recipe), "skip": skip(recipe)} for recipe in recipes},
    }
    Path(out, f"rank{dist.get_rank()}.json").write_text(json.dumps(answers))
    sys.stdout.flush()
    os._exit(0)  # freeing gloo's groups can abort a process whose tensors its threads still give back


class Residual(nn.Module):
    """Adds to its input, so that it matters whether that is wide or narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.norm(self.first(x))))


def shift(recipe: str) -> float:
    """Return how far apart weights are after some steps, relative to the largest."""
    sharded, copied = (weights_after_training(recipe, sharded=each) for each in (True, False))
    return ((sharded - copied).abs().max() / copied.abs().max()).item()


def weights_after_training(recipe: str, *, sharded: bool) -> Tensor:
    model, optimizer = prepared(recipe, sharded=sharded)
    # DDP would write the weights anew, and master weights would follow the rounded ones.
    forward = model if sharded else DistributedDataParallel(model, init_sync=False)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        backward(forward, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return flat(model)


def skip(recipe: str) -> dict[str, object]:
    """Say what a gradient does that is infinite in the part of rank 1 alone."""
    model, optimizer = prepared(recipe, sharded=True)
    before = flat(model)
    backward(model, optimizer)
    grad = model[1].first.weight.grad
    assert isinstance(grad, DTensor)
    if dist.get_rank() == 1:
        grad.to_local()[0, 0] = float("inf")
    optimizer.step()
    return {
        "overflow": optimizer.last_overflow,
        "scale": optimizer.scale,
        "moved": not torch.equal(before, flat(model)),
    }


def refusal_of_native_arithmetic() -> str:
    model = new_model(sharded=True)
    try:
        apply_recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), "O2", arithmetic="native")
    except RecipeError as error:
        return str(error)
    return "none"


def prepared(recipe: str, *, sharded: bool) -> tuple[nn.Module, RecipeOptimizer]:
    model = new_model(sharded=sharded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return apply_recipe(model, optimizer, recipe, loss_scale="dynamic")


def new_model(*, sharded: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), Residual(16), Residual(16), nn.Linear(16, 4))
    if sharded:
        mesh = init_device_mesh("cpu", (2,))
        for part in (model[1], model[2], model):
            fully_shard(part, mesh=mesh)
    return model


def backward(model: nn.Module, optimizer: RecipeOptimizer) -> None:
    optimizer.backward(F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 4, (8,))))


def flat(model: nn.Module) -> Tensor:
    state = model.state_dict().values()
    return torch.cat([(x.full_tensor() if isinstance(x, DTensor) else x).flatten().float() for x in state])


if __name__ == "__main__":
    main()
