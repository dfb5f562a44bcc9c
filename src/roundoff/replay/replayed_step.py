"""One step of a training, ready to be played again with one thing changed, and the first such experiments.

What made a loss jump, the batch or the state of the training? How far does the step move by rounding alone?
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.loop.sites import Sites
from roundoff.record.torch_private import local_tensor, seen_as_in_training
from roundoff.replay.arguments import external_tensors_in
from roundoff.replay.player import Player, silenced, state_before
from roundoff.replay.snapshots import Snapshot
from roundoff.replay.state import Training, parameters_of
from roundoff.replay.step_tape import ModelEntry, StepTape, flatten_entries
from roundoff.runs import JsonValue


class ReplayedCodeRaised(Exception):
    """The user's code raised in a replay with something changed: it accepts only what the training gives it.

    Any other exception in an experiment is a failure of ours.
    """


class ReplayedStep:
    """One step, ready to be played again in the state it started from."""

    def __init__(self, training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites) -> None:
        self.training = training
        self.sites = sites
        self.tape = tapes[-1]
        self._state = snapshot.state if len(tapes) == 1 else state_before(training, snapshot, tapes)

    @property
    def batch_size(self) -> int | None:
        """The first dimension of the first model's input; None for a single sample."""
        for entry in flatten_entries(self.tape.entries):
            if isinstance(entry, ModelEntry):
                sizes = [x.copy.shape[0] for x in external_tensors_in((entry.args, entry.kwargs)) if x.copy.dim()]
                return sizes[0] if sizes and sizes[0] > 1 else None
        return None

    @property
    def rounds_on_purpose(self) -> bool:
        """Whether a recipe rounds: samples of a batch share a scale, and gradients ignore the rounding."""
        calls = [entry for entry in flatten_entries(self.tape.entries) if isinstance(entry, ModelEntry)]
        used = {id(parameter) for call in calls for parameter in call.module.parameters()}
        return any(_rounds(optimizer) and _updates(optimizer, used) for optimizer in self.training.recipes())

    @contextlib.contextmanager
    def in_state(self) -> Iterator[None]:
        """Put the training into the state before the step, inside the block."""
        with self._state.swapped_in(self.training), silenced(), seen_as_in_training():
            yield

    def play(self, tape: StepTape | None = None, **changes: Any) -> Player:
        """Play the step, or the calls of another tape, in the state that `in_state` made.

        Raises:
            ReplayedCodeRaised: the calls do not accept what was changed.
        """
        player = Player(**changes)
        try:
            player.play((tape or self.tape).entries)
        except Exception as error:
            raise ReplayedCodeRaised(f"{type(error).__name__}: {error}") from error
        return player


def _rounds(optimizer: RecipeOptimizer) -> bool:
    return optimizer.recipe.compute != "plain" or bool(optimizer.recipe.least_activation_bits)


def _updates(optimizer: RecipeOptimizer, parameters: set[int]) -> bool:
    """Say whether an optimizer, which may be left over from an earlier training, updates any of the parameters."""
    return any(
        id(x) in parameters for x in (*parameters_of(optimizer), *(parameter for parameter, _ in optimizer.stand_ins))
    )


def cut_batch(x: Tensor, size: int, part: slice) -> Tensor:
    """Return a part of a tensor that has one entry per sample of the batch; other tensors unchanged."""
    return x[part] if x.dim() and x.shape[0] == size else x


def mean_loss(player: Player) -> float | None:
    """Return the mean of the losses of a step; None if it had none."""
    values = [float(loss) for loss in player.losses]
    return math.fsum(values) / len(values) if values else None


def spike_probe(
    training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites
) -> dict[str, JsonValue] | None:
    """Play the last step with the batch of the previous step, and in the state before the previous step.

    None if the snapshot leads to no other step.
    """
    if len(tapes) < 2:
        return None
    here, earlier = ReplayedStep(training, snapshot, tapes, sites), ReplayedStep(training, snapshot, tapes[:-1], sites)
    return {
        "probe": "spike",
        "loss": _loss(here, tapes[-1]),
        "other_batch": _loss(here, tapes[-2]),
        "earlier_state": _loss(earlier, tapes[-1]),
        **_worst_sample(here),
    }


def _worst_sample(step: ReplayedStep) -> dict[str, JsonValue]:
    """Find the sample with the largest loss by halving the batch, in eval mode, and its loss."""
    found: dict[str, JsonValue] = {"batch_size": step.batch_size, "worst_sample": None, "worst_loss": None}
    if step.batch_size is None:
        return found
    first, end, loss = 0, step.batch_size, 0.0
    with contextlib.suppress(ReplayedCodeRaised):  # a model may accept batches of one size only
        while end - first > 1:
            middle = (first + end) // 2
            halves = [_loss_of(step, slice(*bounds)) for bounds in ((first, middle), (middle, end))]
            first, end = (first, middle) if halves[0] >= halves[1] else (middle, end)
            loss = max(halves)
        found.update({"worst_sample": first, "worst_loss": loss})
    return found


def _loss_of(step: ReplayedStep, part: slice) -> float:
    size = step.batch_size or 0
    with step.in_state():
        player = step.play(forward_only=True, is_training=False, change=lambda x: cut_batch(x, size, part))
    return mean_loss(player) or 0.0


def _loss(step: ReplayedStep, batch: StepTape) -> float | None:
    with step.in_state():
        return mean_loss(step.play(batch, forward_only=True))


def perturb_parameters_(modules: Iterable[nn.Module]) -> None:
    """Move every number of every parameter by about one unit in the last place, up or down at random.

    The random numbers come from a separate generator, so that those of the training do not change.
    """
    seen: set[int] = set()
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in seen and parameter.is_floating_point():
                    seen.add(id(parameter))
                    _move_(parameter)


def _move_(parameter: Tensor) -> None:
    local = local_tensor(parameter)
    values = (parameter if local is None else local).data
    generator = torch.Generator().manual_seed(values.numel())
    signs = torch.randint(0, 2, values.shape, generator=generator) * 2 - 1
    values.mul_(1 + signs.to(device=values.device, dtype=values.dtype) * torch.finfo(values.dtype).eps)
