"""A training that is paused after a few steps, so that its next step can be run many times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from roundoff.errors import PlanError
from roundoff.train.config import TrainConfig
from roundoff.train.data import Batch
from roundoff.train.objective import loss_of
from roundoff.train.ranks import joined_ranks, place_here
from roundoff.train.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedStep:
    """A model in training mode, and the batch of its next step."""

    model: nn.Module
    batch: Batch
    config: TrainConfig

    def run(self) -> Tensor:
        """Run forward and backward, leave gradients on the parameters, and return the loss."""
        loss = loss_of(
            self.model(self.batch.inputs),
            self.batch,
            label_smoothing=self.config.label_smoothing,
            reduction=self.config.loss_reduction,
        )
        torch.autograd.backward(loss)
        return loss.detach()


@contextlib.contextmanager
def pausing_training(config: TrainConfig, *, after: int) -> Iterator[PausedStep]:
    """Train in fp32 for `after` steps, in this process, and yield the next step.

    Raises:
        PlanError: the training has several ranks, or fewer steps.
    """
    if config.num_ranks > 1:
        raise PlanError.explain(
            "This plan does not work for a training on several ranks.",
            why="its step is run in one process.",
            fix="plan it with --procs 1; the recipe works for any number of ranks.",
        )
    alone = replace(config, recipe="fp32", loss_scale="recipe", runs=None, resume=None, workers=0)
    with joined_ranks(alone, place_here(alone)) as ranks:
        training = Trainer(alone, ranks)
        training.sampler.begin(epoch=0, first_step=0)
        batches: Iterator[Batch] = iter(training.batches)
        training.model.train()
        for _ in range(after):
            PausedStep(model=training.model, batch=_next_batch(batches, ranks.device, after), config=alone).run()
            training.optimizer.step()
            training.optimizer.zero_grad()
        yield PausedStep(model=training.model, batch=_next_batch(batches, ranks.device, after), config=alone)


def _next_batch(batches: Iterator[Batch], device: torch.device, after: int) -> Batch:
    batch = next(batches, None)
    if batch is None:
        raise PlanError.explain(f"An epoch of this training has no step {after}.", fix="--measure-step 0")
    return batch.to(device)
