"""The ranks that train one model together: their numbers and devices, and the communication between them."""

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
from torch.nn.parallel import DistributedDataParallel

from roundoff.errors import TrainError, first_line
from roundoff.torch_private import keep_process_group
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
