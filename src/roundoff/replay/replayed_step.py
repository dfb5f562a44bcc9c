"""One step of a training, ready to be played again with one thing changed, and the first such experiments.

What made a loss jump, the batch or the state of the training? How far does the step move by rounding alone?
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.precision.optimizer import RecipeOptimizer
from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.source_lines import Sources
from roundoff.record.structure import parameters_of
from roundoff.replay.arguments import external_tensors_in
from roundoff.replay.criterion_calls import CriterionWatcher
from roundoff.replay.loss_terms import LossTermWatcher
from roundoff.replay.lost_numbers import LostNumbersFinder, lost_in_tensor
from roundoff.replay.player import OutOfTime, Player, discarding_output, replay_sources, state_before
from roundoff.replay.python_state import own_attributes
from roundoff.replay.snapshots import Snapshot
from roundoff.replay.state import Training
from roundoff.replay.step_tape import BackwardEntry, ModelEntry, StepEntry, StepTape, flatten_entries
from roundoff.runs import CriterionCall, LossTermsProbe, LostNumbers, SpikeProbe
from roundoff.torch_private import FunctionMode, calls_of_modules, hidden_from_modes, local_tensor, seen_as_in_training

_MAX_CHANGED = 8


class ReplayedCodeRaised(Exception):
    """The user's code raised in a replay with something changed: it accepts only what the training gives it.

    Any other exception in an experiment is a failure of ours.
    """


class ReplayedStep:
    """One step, ready to be played again in the state it started from.

    Args:
        training: what was trained.
        snapshot: the state before the first of the tapes.
        tapes: the steps up to this one, which is the last of them.
        sites: the places in the models.
        until: when to stop playing, as `time.monotonic` says it.

    Raises:
        OutOfTime: the time was over before the steps that lead to this one were played.
    """

    def __init__(
        self,
        training: Training,
        snapshot: Snapshot,
        tapes: Sequence[StepTape],
        sites: Sites,
        *,
        until: float = math.inf,
    ) -> None:
        self._until = until
        self.training = training
        self.sites = sites
        self.tape = tapes[-1]
        self._state = snapshot.state if len(tapes) == 1 else state_before(training, snapshot, tapes, until=until)

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
        return any(_rounds(optimizer) and updates(optimizer, used) for optimizer in self.training.recipes())

    @contextlib.contextmanager
    def in_state(self) -> Iterator[None]:
        """Put the training into the state before the step, inside the block."""
        with self._state.swapped_in(self.training), discarding_output(), seen_as_in_training():
            yield

    def play(self, tape: StepTape | None = None, **changes: Any) -> Player:
        """Play the step, or the calls of another tape, in the state that `in_state` made.

        Raises:
            ReplayedCodeRaised: the calls do not accept what was changed.
            OutOfTime: the time is over.
        """
        player = Player(**changes, until=self._until)
        try:
            player.play((tape or self.tape).entries)
        except OutOfTime:
            raise
        except Exception as error:
            raise ReplayedCodeRaised(f"{type(error).__name__}: {error}") from error
        return player


def _rounds(optimizer: RecipeOptimizer) -> bool:
    return optimizer.recipe.compute != "plain" or bool(optimizer.recipe.least_activation_bits)


def updates(optimizer: RecipeOptimizer, parameters: set[int]) -> bool:
    """Return whether an optimizer, which may be left over from an earlier training, updates any of the parameters."""
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


def spike_probe(training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites) -> SpikeProbe | None:
    """Play the last step with the batch of the previous step, and in the state before the previous step.

    None if the snapshot leads to no other step.
    """
    if len(tapes) < 2:
        return None
    here, earlier = ReplayedStep(training, snapshot, tapes, sites), ReplayedStep(training, snapshot, tapes[:-1], sites)
    changed_attributes, with_changed = _play_with_changed_attributes(here)
    worst_sample, worst_loss = _find_worst_sample(here)
    return SpikeProbe(
        step=tapes[-1].step,
        loss=_loss(here, tapes[-1]),
        other_batch=_loss(here, tapes[-2]),
        earlier_state=_loss(earlier, tapes[-1]),
        previous=_loss(earlier, tapes[-2]),
        previous_in_training=_loss_in_training(tapes[-2]),
        changed_attributes=changed_attributes,
        with_changed=with_changed,
        changed_shapes=_changed_shapes(tapes),
        batch_size=here.batch_size,
        worst_sample=worst_sample,
        worst_loss=worst_loss,
    )


def _changed_shapes(tapes: Sequence[StepTape]) -> tuple[str, ...]:
    """Return which inputs changed their shape, other than the batch size, if all steps before had the same shapes."""
    shapes = [_sample_shapes(tape) for tape in tapes]
    before, here = shapes[-2], shapes[-1]
    if len(before) != len(here) or any(each != before for each in shapes[:-1]):
        return ()
    return tuple(f"{old} to {new}" for old, new in zip(before, here, strict=True) if old != new)


def _sample_shapes(tape: StepTape) -> list[tuple[int, ...]]:
    calls = [entry for entry in flatten_entries(tape.entries) if isinstance(entry, ModelEntry)]
    given = external_tensors_in([(call.args, call.kwargs) for call in calls])
    return [tuple(x.copy.shape[1:]) for x in given if not x.copy.is_nested]


def _play_with_changed_attributes(step: ReplayedStep) -> tuple[tuple[str, ...], float | None]:
    """Return the numbers and flags of modules that the script itself changed, as text, and the loss with those."""
    live = _settings_of(step.training.modules())
    with step.in_state():
        step.play(forward_only=True)
        played = _settings_of(step.training.modules())
    changed = [
        (module, name)
        for module, name in live
        if (module, name) in played and played[module, name] != live[module, name]
    ]
    if not changed:
        return (), None
    with step.in_state():
        for module, name in changed:
            setattr(module, name, live[module, name])
        loss = mean_loss(step.play(forward_only=True))
    sites = step.sites
    texts = (
        f"{sites.names[sites.of_module(module, 0)]}.{name} was {played[module, name]}, is {live[module, name]}"
        for module, name in changed[:_MAX_CHANGED]
    )
    return tuple(texts), loss


def _settings_of(modules: Iterable[nn.Module]) -> dict[tuple[nn.Module, str], Any]:
    return {
        (module, name): value
        for module in modules
        for name, value in own_attributes(module).items()
        if isinstance(value, (bool, int, float, str)) and name != "training"
    }


def _find_worst_sample(step: ReplayedStep) -> tuple[int | None, float | None]:
    """Return the sample with the largest loss, found by halving the batch in eval mode, and that loss."""
    if step.batch_size is None:
        return None, None
    first, end, loss = 0, step.batch_size, 0.0
    try:
        while end - first > 1:
            middle = (first + end) // 2
            halves = [_loss_of(step, slice(*bounds)) for bounds in ((first, middle), (middle, end))]
            first, end = (first, middle) if halves[0] >= halves[1] else (middle, end)
            loss = max(halves)
    except ReplayedCodeRaised:
        return None, None  # a model may accept batches of one size only
    return first, loss


def _loss_of(step: ReplayedStep, part: slice) -> float:
    size = step.batch_size or 0
    with step.in_state():
        player = step.play(forward_only=True, is_training=False, change=lambda x: cut_batch(x, size, part))
    return mean_loss(player) or 0.0


def _loss(step: ReplayedStep, batch: StepTape) -> float | None:
    with step.in_state():
        return mean_loss(step.play(batch, forward_only=True))


def _loss_in_training(tape: StepTape) -> float | None:
    """Return the mean loss that a step had when the loop made it."""
    entries = flatten_entries(tape.entries)
    values = [float(e.loss) for e in entries if isinstance(e, BackwardEntry) and e.loss is not None]
    return math.fsum(values) / len(values) if values else None


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


_MAX_LOSSES = 4


def forward_facts(step: ReplayedStep) -> list[CriterionCall | LossTermsProbe | LostNumbers]:
    """Play the forward of a step; describe calls of loss functions, terms of the losses, and lost whole numbers."""
    sources = replay_sources()
    criteria, terms = CriterionWatcher(step.tape, sources), LossTermWatcher(step=step.tape.step, sources=sources)
    numbers = _LostNumbersWatcher(step.sites, sources)
    with step.in_state():
        with criteria, terms, numbers:
            player = step.play(forward_only=True, sources=sources)
        counters = list(_held_counters(step))
        held = {id(p) for optimizer in step.training.optimizers for p in parameters_of(optimizer)}
        held |= {id(p) for optimizer in step.training.recipes() for p, _ in optimizer.stand_ins}
        stepping = {id(p) for optimizer in _stepping(step) for p in parameters_of(optimizer)} & held
        of_models = [set(map(id, model.parameters())) for model in step.training.models]
        others = {number for numbers in of_models if numbers.isdisjoint(held) for number in numbers}
        roots = [root for root in player.roots if type(root) is Tensor and root.numel() == 1][:_MAX_LOSSES]
        sums = [terms.terms_of(root, held=held, stepping=stepping or held, others=others) for root in roots]
    for failure in (criteria.failure, terms.failure, numbers.finder.failure):
        if failure is not None:
            raise failure
    lost = [replace(each, step=step.tape.step) for each in (*numbers.finder.take(), *counters)]
    return [*criteria.found, *sums, *lost]


def _stepping(step: ReplayedStep) -> list[Optimizer]:
    """Return the optimizers that step in the step; none if a recipe or a scaler steps for them."""
    entries = flatten_entries(step.tape.entries)
    return [] if step.training.recipes() else [e.optimizer for e in entries if isinstance(e, StepEntry)]


class _LostNumbersWatcher(FunctionMode):
    """Looks at each torch function in its block."""

    def __init__(self, sites: Sites, sources: Sources) -> None:
        super().__init__()
        self.finder = LostNumbersFinder(waits=True)
        self._sites = sites
        self._sources = sources

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Make the call, and look at it before and after."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if not self.finder.wants(name):
            return func(*args, **named)
        wide = self.finder.before(name, args)
        result = func(*args, **named)
        self.finder.after(func, args, named, result, wide, self._place)
        return result

    def _place(self) -> tuple[str, str | None]:
        module, place = next(calls_of_modules(), None), self._sources.here()
        site = LOOP if module is None else self._sites.names[self._sites.of_module(module, 0)]
        return site, self._sources.lines[place] if place >= 0 else None


def _held_counters(step: ReplayedStep) -> Iterator[LostNumbers]:
    """Yield the counters that modules hold as buffers, and that come from outside, in a format that rounds them."""
    with hidden_from_modes(), torch.no_grad():
        for module in step.training.modules():
            for name, buffer in module.named_buffers(recurse=False):
                lost = lost_in_tensor(buffer, "buffer")
                if lost is not None:
                    site = step.sites.names[step.sites.of_module(module, 0)]
                    yield replace(lost, site=site, function=f"buffer {name}")
        for external in step.tape.external:
            lost = lost_in_tensor(external.copy, "input")
            if lost is not None:
                yield lost
