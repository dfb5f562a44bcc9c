"""The ranks that train one model together: who I am, where I compute, and what we tell each other."""

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
from roundoff.record.torch_private import keep_process_group
from roundoff.train.config import TrainConfig


class LostContactError(TrainError):
    """A rank that did not hear from the others: rarely the one to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank's place among all."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    num_local: int = 1


def place_here(config: TrainConfig) -> RankPlace:
    """Return this process's place: the one torchrun gave it, else the one it was told."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return RankPlace(rank=config.rank, num_ranks=config.num_ranks)
    if config.procs > 1:
        raise TrainError.explain(
            f"--procs {config.procs} inside a launcher.",
            why="torchrun has already started the ranks of this machine.",
            fix="leave --procs out, or start without torchrun.",
        )
    return RankPlace(
        rank=int(os.environ["RANK"]),
        num_ranks=int(os.environ["WORLD_SIZE"]),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        num_local=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )


class Ranks:
    """What one rank says to the others; alone, it says nothing."""

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        self.rank, self.num_ranks, self.device = place.rank, place.num_ranks, device

    @property
    def is_first(self) -> bool:
        """Whether this rank speaks for all: shows progress, saves checkpoints."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        if self.num_ranks > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def from_first(self, value: Any) -> Any:
        """Return what rank 0 passed."""
        if self.num_ranks == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]

    def from_all(self, value: Any) -> list[Any]:
        """Return what every rank passed, in their order."""
        if self.num_ranks == 1:
            return [value]
        values: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.num_ranks > 1:
            dist.barrier()

    def share_buffers(self, model: nn.Module) -> None:
        """Give all ranks rank 0's buffers, so that all evaluate the same model."""
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
            # Sending rank 0's weights around would write them anew, and master weights follow what others write: they
            # would start from rounded ones.
            init_sync=False,
        )


_FAREWELL_SECONDS = 0.3
"""Ending Python abandons the threads of a process group; a gloo thread that is just giving a tensor back needs Python's
lock then, and aborts. So they get a moment to finish before the ranks part."""


@contextlib.contextmanager
def joined_ranks(config: TrainConfig, place: RankPlace) -> Iterator[Ranks]:
    """Meet the other ranks, if there are any, and part from them at the end of the block.

    A rank that hears nothing for `timeout_seconds`, or whose neighbour is gone, raises a `TrainError`.
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
                fix="look for the first rank that failed; waits longer with --timeout SECONDS.",
            ) from error
        finally:
            if dist.is_initialized():
                keep_process_group(dist.group.WORLD)
                time.sleep(_FAREWELL_SECONDS)
                dist.destroy_process_group()


def device_of(name: str, local_rank: int) -> torch.device:
    """Return the device a rank computes on: ranks of one machine take turns over its accelerators."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            return torch.device("cpu")
        return torch.device(accelerator.type, local_rank % torch.accelerator.device_count())
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except Exception as error:  # drivers raise whatever they like
        raise TrainError.explain(
            f"There is no device '{name}' here.", why=first_line(error), fix="roundoff doctor lists them."
        ) from error
    if device.type != "cpu" and ":" not in name:
        return torch.device(device.type, local_rank % torch.accelerator.device_count())
    return device


@contextlib.contextmanager
def _threads(number: int | None, *, num_local: int) -> Iterator[None]:
    """Use so many threads inside the block; by default an equal share of torch's own choice."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or max(1, before // num_local))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_lost_contact(error: BaseException) -> bool:
    words = ("connection", "timed out", "timeout", "socket", "peer")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)
