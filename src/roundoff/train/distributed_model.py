"""Models on several ranks: FSDP2, whose shards are gathered for a checkpoint, and batch norm over all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from roundoff.errors import TrainError
from roundoff.torch_private import BatchNormBase
from roundoff.train.ranks import Ranks

_MIN_PARAMETERS = 10_000
"""Smaller blocks are gathered together with the module around them."""


def shard(model: nn.Module, ranks: Ranks) -> None:
    """Shard a model's weights over the ranks, block by block, in fp32; a recipe can be applied afterwards."""
    if ranks.num_ranks == 1:
        raise TrainError.explain(
            "--fsdp needs several ranks.", why="there is only one.", fix="use --procs 2, or torchrun --nproc-per-node 2"
        )
    mesh = init_device_mesh(ranks.device.type, (ranks.num_ranks,))
    for module in model.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            for block in module:
                if len(list(block.children())) > 1 and _num_parameters(block) >= _MIN_PARAMETERS:
                    fully_shard(block, mesh=mesh)
    # By default the outermost module stays gathered after an evaluation, and would miss later changes to its weights.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def gather_shards(tree: Any) -> Any:
    """Gather every sharded tensor in nested dicts and lists; all ranks must call it together."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: gather_shards(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(gather_shards(value) for value in tree)
    return tree


def sharded_like(now: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Shard whole tensors like those of the same names in `now`."""
    return {name: _shard_like(value, now.get(name)) for name, value in state.items()}


def sharded_for(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Shard the tensors of an optimizer's state like their parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(isinstance(parameter, DTensor) for parameter in parameters):
        return state
    sharded = {
        index: {name: _shard_like(value, parameters[index]) for name, value in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": sharded}


def _shard_like(value: Any, like: Any) -> Any:
    if isinstance(value, Tensor) and isinstance(like, DTensor) and value.shape == like.shape:
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
    return value


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def with_synced_batch_norm(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Synchronise every batch norm of a model: with torch's own on accelerators, with `SyncedBatchNorm` on a CPU."""
    if ranks.num_ranks == 1:
        return model
    if ranks.device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = SyncedBatchNorm
    return model


class SyncedBatchNorm(BatchNormBase):
    """Batch norm over all ranks on any device; `torch.nn.SyncBatchNorm` does not support CPUs."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2, input.shape

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each channel with its mean and variance over the batches of all ranks."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        x = input.float()
        over = [axis for axis in range(x.ndim) if axis != 1]
        count = torch.tensor([x.numel() / x.shape[1]], device=x.device)
        sums: Tensor = sum_over_ranks(torch.cat([x.sum(over), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = x - _per_channel(mean, x)
        squares: Tensor = sum_over_ranks(centred.square().sum(over))
        variance = squares / total
        self._remember(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        normal = centred * _per_channel((variance + self.eps).rsqrt(), x)
        if self.affine:
            normal = normal * _per_channel(self.weight.float(), x) + _per_channel(self.bias.float(), x)
        return normal.to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks; each rank's gradient is the sum of all ranks' gradients."""
    result: Tensor = _SumOverRanks.apply(values)  # type: ignore[no-untyped-call]
    return result


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone()
        dist.all_reduce(total)
        return total


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *([1] * (like.ndim - 2)))
