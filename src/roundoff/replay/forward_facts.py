"""The forward of a step played once more: what its loss functions are fed with, and where whole numbers are lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.source_lines import Sources
from roundoff.replay.criterion_calls import CriterionWatcher
from roundoff.replay.lost_numbers import LostNumbersFinder, lost_in_tensor
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.runs import CriterionCall, LostNumbers
from roundoff.torch_private import FunctionMode, calls_of_modules, hidden_from_modes


def forward_facts(step: ReplayedStep) -> list[CriterionCall | LostNumbers]:
    """Play the forward of a step, and describe the calls of loss functions and of what loses whole numbers in it."""
    sources = replay_sources()
    criteria = CriterionWatcher(step.tape, sources)
    numbers = _LostNumbersWatcher(step.sites, sources)
    with step.in_state(), criteria, numbers:
        step.play(forward_only=True, sources=sources)
        held = list(_held_counters(step))
    for failure in (criteria.failure, numbers.finder.failure):
        if failure is not None:
            raise failure
    lost = [replace(each, step=step.tape.step) for each in (*numbers.finder.take(), *held)]
    return [*criteria.found, *lost]


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
