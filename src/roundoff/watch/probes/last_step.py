"""Runs the probes on the last step of a training, and writes what they measure into the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import torch

from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.ops.op_table import describe_op
from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import NotReplayable
from roundoff.replay.loss_terms import Addend, AddendWatcher
from roundoff.replay.player import OutOfTime, replay_sources
from roundoff.replay.replayed_step import ReplayedCodeRaised, ReplayedStep, cut_batch, forward_facts, mean_loss
from roundoff.replay.snapshots import ReplayPath
from roundoff.replay.state import Training
from roundoff.replay.step_tape import flatten_entries
from roundoff.replay.what_if import is_narrow
from roundoff.runs import EvalModeProbe, Failure, HalfBatchProbe, HalvedTerm, OverfitProbe, Probe, RandomOp, RunWriter
from roundoff.torch_private import DispatchMode, calls_of_modules, push_mode, remove_mode
from roundoff.watch.probes.axes import axes
from roundoff.watch.probes.batch_mixing import batch_mixing
from roundoff.watch.probes.fp64_step import fp64_step, gradient_direction
from roundoff.watch.probes.token_flow import token_flow

_OVERFIT_STEPS = 40
_MIN_STEPS = 50
"""A loss that has not fallen by then should have."""
RunProbe: TypeAlias = Callable[[ReplayedStep], Probe | None]


class LastStepProbes:
    """Runs the probes on one step within a time limit, and writes their results into the run."""

    def __init__(self, writer: RunWriter, *, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds

    def run(self, training: Training, path: ReplayPath, sites: Sites, *, is_suspicious: bool) -> None:
        """Run one probe after another while time is left.

        A probe is left out if the user's code does not accept what it changes; a failure of ours is noted in the run.

        Args:
            training: what was trained.
            path: what a replay of its last step goes through.
            sites: the places in its models.
            is_suspicious: the loss did not go down, so also check whether one batch can be learned.
        """
        try:
            step = ReplayedStep(training, *path, sites, until=time.monotonic() + self._seconds)
            self._see_forward(step)
            self._run_probes(step, is_suspicious=is_suspicious)
        except NotReplayable:  # the steps take another course than they did; recorded ones say why
            return
        except OutOfTime:
            self._writer.note(f"Probes were cut short after {self._seconds:g} s.")

    def _run_probes(self, step: ReplayedStep, *, is_suspicious: bool) -> None:
        for name, probe in _probes_for(step, is_suspicious=is_suspicious).items():
            try:
                found = probe(step)
            except OutOfTime:
                raise
            except ReplayedCodeRaised:
                continue
            except Exception as error:
                self._writer.write(Failure.of(error, check="probe", name=name, step=step.tape.step))
                continue
            if found is not None:
                self._writer.write(found)

    def _see_forward(self, step: ReplayedStep) -> None:
        """Look at the loss functions once more: a later phase of the training may use others."""
        try:
            for fact in forward_facts(step):
                self._writer.write(fact)
        except OutOfTime:
            raise
        except ReplayedCodeRaised:
            return
        except Exception as error:
            self._writer.write(Failure.of(error, check="fact", name="forward", step=step.tape.step))


def _probes_for(step: ReplayedStep, *, is_suspicious: bool) -> dict[str, RunProbe]:
    """Return the probes that make sense for a step, by name, in the order in which to run them."""
    probes: dict[str, RunProbe] = {}
    if is_narrow(list(flatten_entries(step.tape.entries))):
        probes["wide"] = fp64_step  # what it tells is the likeliest cause then, and time may run out
    probes |= {"eval-mode": _eval_mode, "half-batch": _half_batch}
    if not step.rounds_on_purpose:
        mixing = partial(batch_mixing, may_be_time=not is_suspicious or step.tape.step < _MIN_STEPS)
        probes |= {"batch-mixing": mixing, "axes": axes, "token-flow": token_flow}
    if is_suspicious:
        probes["overfit"] = _overfit  # takes long
    if not step.rounds_on_purpose:
        probes["direction"] = gradient_direction
    return {**probes, "wide": fp64_step}


def _half_batch(step: ReplayedStep) -> HalfBatchProbe | None:
    """Play the step in eval mode with each half of the batch: a mean stays, a sum halves."""
    size = step.batch_size
    if size is None or size < 4:
        return None
    halves: list[float | None] = []
    addends: list[list[Addend]] = []
    for part in (slice(0, size // 2), slice(size // 2, size), slice(0, size)):
        sources = replay_sources()
        watcher = AddendWatcher(sources)
        with step.in_state():
            with watcher:
                player = step.play(
                    forward_only=True,
                    is_training=False,
                    change=lambda x, part=part: cut_batch(x, size, part),
                    sources=sources,
                )
            halves.append(mean_loss(player))
            addends.append([addend for root in player.roots[:1] for addend in watcher.addends_of(root)])
        if watcher.failure is not None:
            raise watcher.failure
    whole = halves.pop()
    return HalfBatchProbe(
        step=step.tape.step, loss=whole, halves=tuple(halves), size=size, terms=tuple(_halved_terms(*addends))
    )


def _halved_terms(first: list[Addend], second: list[Addend], whole: list[Addend]) -> Iterator[HalvedTerm]:
    if len(first) == len(second) == len(whole):
        for a, b, both in zip(first, second, whole, strict=True):
            yield HalvedTerm(value=both.value, halves=(a.value, b.value), factor=both.factor, source=both.source)


def _eval_mode(step: ReplayedStep) -> EvalModeProbe:
    """Play the same batch in train mode and, twice, in eval mode."""
    with step.in_state():
        train = mean_loss(step.play(forward_only=True))
    sources = replay_sources()
    with step.in_state(), noting_random_ops(step.sites, sources) as random_ops:
        once = mean_loss(step.play(forward_only=True, is_training=False, sources=sources))
        drawn = tuple(random_ops)  # copied here: leaving the block restores every list
    with step.in_state():
        torch.manual_seed(1)
        again = mean_loss(step.play(forward_only=True, is_training=False, keeps_generators=False))
    return EvalModeProbe(step=step.tape.step, train_loss=train, eval_loss=once, eval_again=again, random_ops=drawn)


def _overfit(step: ReplayedStep) -> OverfitProbe | None:
    """Take the step again and again with the same batch: any model that can learn learns that."""
    losses: list[float | None] = []
    with step.in_state(), contextlib.suppress(OutOfTime):
        while len(losses) < _OVERFIT_STEPS:
            losses.append(mean_loss(step.play()))
    return OverfitProbe(step=step.tape.step, losses=tuple(losses)) if len(losses) > 1 else None


@contextlib.contextmanager
def noting_random_ops(sites: Sites, sources: Sources) -> Iterator[list[RandomOp]]:
    """Yield a list that grows inside the block by the site, op and source of every random op."""
    mode = _RandomOps(sites, sources)
    push_mode(mode)
    try:
        yield mode.found
    finally:
        remove_mode(mode)


class _RandomOps(DispatchMode):
    """Notes the ops that draw random numbers, and where."""

    def __init__(self, sites: Sites, sources: Sources) -> None:
        super().__init__()
        self.found: list[RandomOp] = []
        self._sites = sites
        self._sources = sources

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs or {}):
            place = self._sources.here()
            source = self._sources.lines[place] if place >= 0 else None
            self.found.append(RandomOp(site=self._site(), op=describe_op(func).name, source=source))
        return func(*args, **kwargs) if kwargs else func(*args)

    def _site(self) -> str:
        """Return the site of the innermost module whose call is on the stack: here no module hooks say which it is."""
        module = next(calls_of_modules(), None)
        return LOOP if module is None else self._sites.names[self._sites.of_module(module, 0)]


def _draws_nothing(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Say whether an op that could draw random numbers does not: attention and dropout with probability 0."""
    arguments = func._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    if given.get("train") is False or given.get("training") is False:
        return True
    return any(name in names and not given.get(name, 0.0) for name in ("dropout_p", "p"))
