"""FSDP2: weights, gradients and optimizer state divided among the ranks, and whole again in a checkpoint."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from roundoff.errors import TrainError
from roundoff.train.ranks import Ranks

_MIN_PARAMETERS = 10_000
"""Smaller parts are gathered together with the part around them."""


def shard(model: nn.Module, ranks: Ranks) -> None:
    """Divide a model's weights among the ranks, block by block, in fp32; a recipe goes on from there."""
    if ranks.num_ranks == 1:
        raise TrainError.explain(
            "--fsdp needs several ranks.", why="there is one.", fix="--procs 2, or torchrun --nproc-per-node 2 ..."
        )
    mesh = init_device_mesh(ranks.device.type, (ranks.num_ranks,))
    for module in model.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            for block in module:
                if len(list(block.children())) > 1 and _num_parameters(block) >= _MIN_PARAMETERS:
                    fully_shard(block, mesh=mesh)
    # By default the outermost part would stay gathered after an evaluation, and miss what is written to its weights.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def whole(tree: Any) -> Any:
    """Return nested dicts and lists with every sharded tensor put together; all ranks must call it alike."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(whole(value) for value in tree)
    return tree


def sharded_like(now: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return whole tensors divided as those of the same names are now."""
    return {name: _divided(value, now.get(name)) for name, value in state.items()}


def sharded_for(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with every tensor divided as the parameter it belongs to."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(isinstance(parameter, DTensor) for parameter in parameters):
        return state
    divided = {
        index: {name: _divided(value, parameters[index]) for name, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": divided}


def _divided(value: Any, like: Any) -> Any:
    if isinstance(value, Tensor) and isinstance(like, DTensor) and value.shape == like.shape:
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return value


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
