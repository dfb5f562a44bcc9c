"""The forward of a step played once more: its loss functions, terms of its losses, where whole numbers are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.source_lines import Sources
from roundoff.replay.criterion_calls import CriterionWatcher
from roundoff.replay.loss_terms import LossTermWatcher
from roundoff.replay.lost_numbers import LostNumbersFinder, lost_in_tensor
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.replay.state import parameters_of
from roundoff.replay.step_tape import StepEntry, flatten_entries
from roundoff.runs import CriterionCall, LossTermsProbe, LostNumbers
from roundoff.torch_private import FunctionMode, calls_of_modules, hidden_from_modes

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
