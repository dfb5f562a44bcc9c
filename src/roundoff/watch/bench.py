"""One step of a training, ready to be played again with one thing changed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.sites import Sites
from roundoff.record.torch_private import seen_as_in_training
from roundoff.watch.arguments import outside_in
from roundoff.watch.replay import Player, quietly, state_before
from roundoff.watch.snapshots import Snapshot
from roundoff.watch.state import Training, parameters_of
from roundoff.watch.step_tape import ModelCall, StepTape, flat


class Bench:
    """One step, ready to be played again in the state it started from."""

    def __init__(self, training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites) -> None:
        self.training = training
        self.sites = sites
        self.tape = tapes[-1]
        self._state = snapshot.state if len(tapes) == 1 else state_before(training, snapshot, tapes)

    @property
    def batch_size(self) -> int | None:
        """The first dimension of what the first model was given."""
        for entry in flat(self.tape.entries):
            if isinstance(entry, ModelCall):
                sizes = [x.copy.shape[0] for x in outside_in((entry.args, entry.kwargs)) if x.copy.dim()]
                return sizes[0] if sizes and sizes[0] > 1 else None
        return None

    @property
    def rounds_on_purpose(self) -> bool:
        """Whether a recipe rounds: by scales of a whole batch, and with gradients that pass the rounding by."""
        calls = [entry for entry in flat(self.tape.entries) if isinstance(entry, ModelCall)]
        used = {id(parameter) for call in calls for parameter in call.module.parameters()}
        return any(_rounds(optimizer) and _updates(optimizer, used) for optimizer in self.training.recipes())

    @contextlib.contextmanager
    def in_state(self) -> Iterator[None]:
        """Have the training in the state before the step, inside the block."""
        with self._state.lent(self.training), quietly(), seen_as_in_training():
            yield

    def play(self, **changes: Any) -> Player:
        """Play the step once, in the state that `in_state` made."""
        player = Player(**changes)
        player.play(self.tape.entries)
        return player


def _rounds(optimizer: RecipeOptimizer) -> bool:
    return optimizer.recipe.compute != "plain" or bool(optimizer.recipe.least_activation_bits)


def _updates(optimizer: RecipeOptimizer, parameters: set[int]) -> bool:
    """Say whether an optimizer, perhaps one left over from a training before, updates any of the parameters."""
    return any(
        id(x) in parameters for x in (*parameters_of(optimizer), *(parameter for parameter, _ in optimizer.stand_ins))
    )


def cut_batch(x: Tensor, size: int, part: slice) -> Tensor:
    """Return a part of a tensor that has as many entries as the batch has samples; others as they are."""
    return x[part] if x.dim() and x.shape[0] == size else x


def mean_loss(player: Player) -> float | None:
    """Return the mean of the losses of a step; None if it had none."""
    values = [float(loss) for loss in player.losses]
    return math.fsum(values) / len(values) if values else None
