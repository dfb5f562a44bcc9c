"""Do the samples of a batch depend on each other? One is changed, and the outputs of the others are compared."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from roundoff.kernels.compiled import widest_float
from roundoff.record.loop.sites import LOOP
from roundoff.replay.arguments import external_tensors_in, tensors_of
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.replay.step_tape import FunctionEntry, ModelEntry, flatten_entries
from roundoff.runs import BatchMixingProbe
from roundoff.watch.facts.step_batch import is_loss
from roundoff.watch.probes.function_trail import CalledFunction, FunctionTrail, differ


def batch_mixing(step: ReplayedStep, *, may_be_time: bool = True) -> BatchMixingProbe | None:
    """Change one sample, in eval mode, and check whether the outputs of others change.

    Args:
        step: to be played.
        may_be_time: the first dimension may be time, and the second the samples, if only samples do not mix then;
            false for a model that does not learn, where this is what may be wrong.
    """
    size = step.batch_size
    if size is None or are_related(step, size) or learns_inside(step):
        return None
    sample = size // 2
    dependent = dependent_samples(step, sample, dim=0, size=size)
    if not dependent:
        return BatchMixingProbe(step=step.tape.step, sample=sample, changed=(), site=None)
    if not _repeats(step):
        return None  # outputs that differ anyway say nothing
    entries = [entry for entry in flatten_entries(step.tape.entries) if isinstance(entry, ModelEntry)]
    inputs = [tensor.copy for entry in entries for tensor in external_tensors_in((entry.args, entry.kwargs))]
    widths = {copy.shape[1] for copy in inputs if copy.dim() > 1 and copy.shape[0] == size}
    if (
        may_be_time
        and len(widths) == 1
        and (width := widths.pop()) > 1
        and dependent_samples(step, width // 2, dim=1, size=width) == []
    ):
        return None  # here the first dimension is time, and samples are the second
    site = _first_mixing_site(step, sample, size)
    found = BatchMixingProbe(step=step.tape.step, sample=sample, changed=tuple(dependent), site=site)
    call = _first_mixing_call(step, sample, size)
    return found if call is None else replace(found, function=call.name, source=call.source)


def dependent_samples(step: ReplayedStep, sample: int, *, dim: int, size: int) -> list[int] | None:
    """Return the samples other than `sample` whose outputs change with it; None if the outputs are not by sample."""
    plain = model_outputs(step, None)
    other = model_outputs(step, lambda x: _disturb(x, sample, dim, size))
    gives_losses = not _has_targets(step)
    found: set[int] = set()
    is_by_sample = False
    for a, b in zip(plain, other, strict=True):
        if a.shape != b.shape or a.dim() <= dim or a.shape[dim] != size:
            continue
        if a.shape == (size, size) or (gives_losses and a.numel() == size):
            continue  # scores of samples against each other, or their losses
        is_by_sample = True
        scale = float(a.abs().max()) or 1.0
        differs = ((a - b).abs() > 1e-5 * scale).transpose(0, dim).reshape(size, -1).any(1)
        found |= {int(place) for place in differs.nonzero().flatten()} - {sample}
    return sorted(found) if is_by_sample else None


def are_related(step: ReplayedStep, size: int) -> bool:
    """Say whether samples are nodes of a graph: another input holds a number for each pair of them, or edges."""
    calls = [entry for entry in flatten_entries(step.tape.entries) if isinstance(entry, ModelEntry)]
    given = [x.copy for call in calls for x in external_tensors_in((call.args, call.kwargs))]
    kept = [buffer for call in calls for buffer in call.module.buffers()]
    squares = [x for x in (*given[1:], *kept) if x.shape == (size, size) and x.is_floating_point()]
    # with -inf it would be a mask over time; the neighbours of a graph may be sparse
    if any(x.layout is not torch.strided or bool(x.isfinite().all()) for x in squares):
        return True
    return any(_are_edges(x, size) for x in given[1:])


def learns_inside(step: ReplayedStep) -> bool:
    """Say whether a model is called with weights that the step has computed, which depend on all samples."""
    return any(isinstance(entry, ModelEntry) and entry.replaced for entry in flatten_entries(step.tape.entries))


def _are_edges(x: Tensor, size: int) -> bool:
    return x.dtype is torch.int64 and x.dim() == 2 and len(x) == 2 and bool(x.numel()) and bool((x < size).all())


def _has_targets(step: ReplayedStep) -> bool:
    """Say whether a function or loss gets an external tensor besides the outputs of the models."""
    for entry in flatten_entries(step.tape.entries):
        if not isinstance(entry, (FunctionEntry, ModelEntry)) or (isinstance(entry, ModelEntry) and not is_loss(entry)):
            continue
        if any(True for _ in external_tensors_in((entry.args, entry.kwargs))):
            return True
    return False


def _repeats(step: ReplayedStep) -> bool:
    """Say whether the outputs are the same if nothing is changed."""
    return all(torch.equal(a, b) for a, b in zip(model_outputs(step, None), model_outputs(step, None), strict=True))


def model_outputs(
    step: ReplayedStep, change: Callable[[Tensor], Tensor] | None, *, seed: int | None = None
) -> list[Tensor]:
    """Return what the models of a step give in eval mode, without losses; with a seed, of other random numbers."""
    with step.in_state():
        if seed is not None:
            torch.manual_seed(seed)
        player = step.play(forward_only=True, is_training=False, change=change, keeps_generators=seed is None)
    calls = [entry for entry in flatten_entries(step.tape.entries) if isinstance(entry, ModelEntry)]
    pairs = zip(calls, player.outputs, strict=False)
    outputs = [x for call, output in pairs if not is_loss(call) for x in tensors_of(output)]
    return [x.detach().to(widest_float(x.device)) for x in outputs if x.is_floating_point()]


def _disturb(x: Tensor, sample: int, dim: int, size: int) -> Tensor:
    if x.dim() <= dim or x.shape[dim] != size or x.layout is not torch.strided:
        return x
    if x.is_floating_point() and bool((x == -math.inf).any()):
        return x  # a mask over time, as long as the batch is large
    x = x.clone()
    chosen = x.select(dim, sample)
    if x.is_floating_point():
        factors = torch.linspace(0.5, 1.5, chosen.numel(), device=x.device).view_as(chosen)
        chosen += chosen.std().nan_to_num().clamp(min=1e-2) * factors
    elif x.dtype is not torch.bool and x.dim() > 1:
        chosen.copy_(x.select(dim, (sample + 1) % size))
    return x


def _first_mixing_site(step: ReplayedStep, sample: int, size: int) -> str | None:
    """Return the module in whose own code the values of other samples first change with `sample`."""
    plain = _Trail(size)
    with plain.following():
        model_outputs(step, None)
    other = _Trail(size)
    with other.following():
        model_outputs(step, lambda x: _disturb(x, sample, 0, size))
    others = [place for place in range(size) if place != sample]
    for (module, a), (_, b) in zip(plain.stops, other.stops, strict=False):
        if a.shape == b.shape and bool(((a - b).abs()[others] > 1e-5 * (float(a.abs().max()) or 1.0)).any()):
            return LOOP if module is None else step.sites.names[step.sites.of_module(module, 0)]
    return None


def _first_mixing_call(step: ReplayedStep, sample: int, size: int) -> CalledFunction | None:
    """Return the call that first changes other samples, or takes all of them together for one that does."""
    trails = []
    for change in (None, lambda x: _disturb(x, sample, 0, size)):
        sources = replay_sources()
        trail = FunctionTrail(step.sites, sources)
        with step.in_state(), trail:
            step.play(forward_only=True, is_training=False, change=change, sources=sources)
        trails.append(trail.calls)
    together: CalledFunction | None = None
    for plain, other in zip(*trails, strict=False):
        for a, b in zip(plain.results, other.results, strict=False):
            if a.shape != b.shape or not a.is_floating_point():
                continue
            if a.dim() and a.shape[0] == size:
                rows = differ(a, b).reshape(size, -1).any(1)
                rows[sample] = False
                if bool(rows.any()):
                    return together or plain
            elif bool(differ(a, b).any()):
                together = plain
    return None


class _Trail:
    """Follows values through the modules of a forward: each stop is a tensor, and the module that computed it."""

    def __init__(self, size: int) -> None:
        self.stops: list[tuple[nn.Module | None, Tensor]] = []
        self._size = size
        self._running: list[nn.Module] = []

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stop(self._running[-1] if self._running else None, args)
        self._running.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()
        self._stop(module, output)

    def _stop(self, module: nn.Module | None, values: Any) -> None:
        for x in tensors_of(values):
            if x.is_floating_point() and x.dim() and x.shape[0] == self._size:
                self.stops.append((module, x.detach().to(widest_float(x.device))))
