"""Batch norm whose statistics are those of the whole batch, over all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from roundoff.train.ranks import Ranks


def with_synced_batch_norm(model: nn.Module, ranks: Ranks) -> nn.Module:
    """Return the model with every batch norm synchronised: torch's own on accelerators, ours on a CPU."""
    if ranks.num_ranks == 1:
        return model
    if ranks.device.type != "cpu":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = SyncedBatchNorm
    return model


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over all ranks on any device, which `torch.nn.SyncBatchNorm` is not; still a batch norm to recipes."""

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2, input.shape

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each channel by its mean and variance over the batches of all ranks."""
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
