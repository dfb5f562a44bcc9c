"""The ranks that train one model together: their devices and communication, and models sharded over them (FSDP2)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from roundoff.errors import TrainError, first_line
from roundoff.torch_private import BatchNormBase, keep_process_group
from roundoff.train.config import TrainConfig


class LostContactError(TrainError):
    """A rank that lost contact with the others; it is rarely the one that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place among all."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local: int = 1


def place_here(config: TrainConfig) -> RankPlace:
    """Return the place of this process: that of torchrun, otherwise that of the settings."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return RankPlace(rank=config.rank, num_ranks=config.num_ranks)
    if config.procs > 1:
        raise TrainError.explain(
            f"--procs {config.procs} cannot be used under torchrun.",
            why="torchrun has already started the ranks of this machine.",
            fix="remove --procs, or start without torchrun.",
        )
    return RankPlace(
        rank=int(os.environ["RANK"]),
        num_ranks=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        num_local=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )


class Ranks:
    """The communication of one rank with the others; with a single rank it does nothing."""

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        self.rank, self.num_ranks, self.device = place.rank, place.num_ranks, device

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which shows progress and saves checkpoints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if self.num_ranks > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def from_first(self, value: Any) -> Any:
        """Return the value that rank 0 passed."""
        if self.num_ranks == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def from_all(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.num_ranks > 1:
            dist.barrier()

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the buffers of rank 0 to all ranks, so that all evaluate the same model."""
        if self.num_ranks > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer.data, src=0)

    def wrap(self, model: nn.Module, *, find_unused_parameters: bool) -> nn.Module:
        """Return a model that averages its gradients over the ranks; its weights must be the same on all of them."""
        if self.num_ranks == 1:
            return model
        return DistributedDataParallel(
            model,
            device_ids=None if self.device.type == "cpu" else [self.device],
            find_unused_parameters=find_unused_parameters,
            # Broadcasting the weights of rank 0 would write to them, and master weights would be updated from the
            # rounded ones.
            init_sync=False,
        )


_DRAIN_SECONDS = 0.3
"""When Python exits, a thread of a gloo process group that is still releasing a tensor needs the interpreter lock, and
aborts. This gives such threads time to finish."""


@contextlib.contextmanager
def joined_ranks(config: TrainConfig, place: RankPlace) -> Iterator[Ranks]:
    """Join the process group, if there are several ranks, and leave it at the end of the block.

    A rank that waits longer than `timeout_seconds`, or loses a peer, raises a `TrainError`.
    """
    config.check_batch(place.num_ranks)
    device = device_of(config.device, place.local_rank)
    with _threads(config.threads, num_local=max(place.num_local, config.procs)):
        if place.num_ranks == 1:
            yield Ranks(place, device)
            return
        ranks = Ranks(place, device)
        try:
            dist.init_process_group(
                config.dist_backend or dist.get_default_backend_for_device(device),
                init_method=config.dist_url,
                rank=place.rank,
                world_size=place.num_ranks,
                timeout=timedelta(seconds=config.timeout_seconds),
            )
            yield ranks
        except (dist.DistError, RuntimeError) as error:
            if not _is_lost_contact(error):
                raise
            raise LostContactError.explain(
                f"Rank {place.rank} of {place.num_ranks} lost contact with the others.",
                why=first_line(error),
                fix="find the first rank that failed, or wait longer with --timeout SECONDS.",
            ) from error
        finally:
            if dist.is_initialized():
                keep_process_group(dist.group.WORLD)
                time.sleep(_DRAIN_SECONDS)
                dist.destroy_process_group()


def device_of(name: str, local_rank: int) -> torch.device:
    """Return the device of a rank; the ranks of one machine are distributed over its accelerators."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        return torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # drivers raise all kinds of exceptions
        raise TrainError.explain(
            f"Unknown device '{name}'.", why=first_line(error), fix="roundoff doctor lists the devices."
        ) from error
    if device.type != "cpu" and ":" not in name:
        return torch.device(device.type, local_rank % torch.accelerator.device_count())
    return device


@contextlib.contextmanager
def _threads(number: int | None, *, num_local: int) -> Iterator[None]:
    """Set the number of threads inside the block; by default an equal share of torch's default."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or max(1, before // num_local))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_lost_contact(error: BaseException) -> bool:
    words = ("connection", "timed out", "timeout", "socket", "peer")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


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
