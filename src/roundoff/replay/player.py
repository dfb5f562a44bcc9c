"""Runs steps again from a snapshot and their tapes, without the user's loop, and leaves the training unchanged."""

from __future__ import annotations

import contextlib
import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from roundoff.kernels.host_copies import Reading, read_now
from roundoff.record.accelerator import restore_torch
from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import (
    EarlierStepTensor,
    ExternalTensor,
    NotReplayable,
    Result,
    fill_in,
    references,
    tensors_of,
)
from roundoff.replay.rank_consensus import CollectiveGate
from roundoff.replay.snapshots import Snapshot
from roundoff.replay.state import Training, TrainingState, same_bits
from roundoff.replay.step_tape import (
    Ambient,
    BackwardEntry,
    FunctionEntry,
    LoopEntry,
    ModelEntry,
    StepEntry,
    StepTape,
    TapeEntry,
)
from roundoff.torch_private import engine_module, foreach_norm, hidden_from_modes, local_tensor, seen_as_in_training


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """The result of a replay."""

    step: int
    """The step that was replayed last."""
    first_difference: str | None
    """What came out differently from the training itself, if anything."""
    first_bad_step: int | None
    """The first step that left a weight or buffer with NaN or infinity; None if none did."""
    error: Exception | None = None
    """What the replayed step raised, if anything."""


def replay_steps(
    training: Training,
    snapshot: Snapshot,
    tapes: Sequence[StepTape],
    *,
    around_last: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    sources: Sources | None = None,
    is_complete: bool = False,
    until_bad: bool = False,
    gate: CollectiveGate | None = None,
) -> ReplayOutcome:
    """Run the steps of `tapes` again from `snapshot`; afterwards the training is in its own state again.

    Args:
        training: whose models and optimizers run.
        snapshot: the state to start from.
        tapes: the steps to run; the last is the one of interest.
        around_last: makes a block to run the last step in, such as a recording.
        sources: gets the line of the user's code that is being run.
        is_complete: the live training is where the last step ended, so compare weights, buffers and optimizer state.
        until_bad: stop after the first step that leaves a weight or buffer with NaN or infinity.
        gate: what collectives pass through if several ranks replay together.
    """
    difference: str | None = None
    bad_step: int | None = None
    playing = StepPlayer(tapes, gate)
    with _leaving(gate), snapshot.state.swapped_in(training) as own, discarding_output():
        for tape in tapes:
            is_last = tape is tapes[-1]
            try:
                with around_last() if is_last else contextlib.nullcontext():
                    losses = playing.play(tape, sources if is_last else None)
            except Exception as error:
                if gate is not None:
                    gate.leave(error)
                return ReplayOutcome(step=tape.step, first_difference=difference, first_bad_step=bad_step, error=error)
            if difference is None and not _same_losses(losses, tape.losses):
                difference = f"the loss of step {tape.step}"
            if bad_step is None and not all_finite(training.tensors()):
                bad_step = tape.step
                if until_bad and not is_last:
                    return ReplayOutcome(step=tape.step, first_difference=difference, first_bad_step=bad_step)
        if is_complete and difference is None:
            difference = own.first_difference()
    return ReplayOutcome(step=tapes[-1].step, first_difference=difference, first_bad_step=bad_step)


def replay_sources() -> Sources:
    """Return sources that report the taped line of the user's code, which a replay runs from this file instead."""
    return Sources(stands_in_for=__file__)


def is_reproducible(training: Training, snapshot: Snapshot, tapes: Sequence[StepTape]) -> bool:
    """Return whether two replays of the same steps agree with each other, whatever the training itself computed."""
    ends: list[list[Tensor]] = []
    for _ in range(2):
        with snapshot.state.swapped_in(training), discarding_output():
            playing = StepPlayer(tapes)
            losses = [loss for tape in tapes for loss in playing.play(tape)]
            ends.append([*losses, *(x.detach().clone() for x in training.tensors())])
    first, second = ends
    return len(first) == len(second) and all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def state_before(
    training: Training,
    snapshot: Snapshot,
    tapes: Sequence[StepTape],
    *,
    gate: CollectiveGate | None = None,
    until: float = math.inf,
) -> TrainingState:
    """Return the state before the last of the steps, rebuilt from the snapshot.

    Raises:
        OutOfTime: `time.monotonic` has passed `until`.
    """
    state = TrainingState()
    playing = StepPlayer(tapes, gate, until=until)
    with _leaving(gate), snapshot.state.swapped_in(training), discarding_output():
        for tape in tapes[:-1]:
            playing.play(tape)
        state.take(training)
        state.take_gradients()
    return state


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether every number in the floating-point tensors is finite; one transfer from their device."""
    return not read_now(nonfinite_tensors(tensors))


def nonfinite_tensors(tensors: Sequence[Tensor]) -> Reading[list[int]]:
    """Return the places of tensors with NaN or infinity; one tensor is read from each device."""
    found = [(place, x) for place, tensor in enumerate(tensors) if (x := _numbers_in(tensor)) is not None and x.numel()]
    if not found:
        return []
    with torch.no_grad():
        norms = foreach_norm([x for _, x in found], float("inf"))
        by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
        for (place, _), norm in zip(found, norms, strict=True):
            by_device.setdefault(norm.device, []).append((place, torch.isfinite(norm.float())))
        flags = [torch.stack([flag for _, flag in group]) for group in by_device.values()]
    places = [place for group in by_device.values() for place, _ in group]
    fine = [is_fine for read in (yield flags) for is_fine in read.tolist()]
    return sorted(place for place, is_fine in zip(places, fine, strict=True) if not is_fine)


def _numbers_in(x: Tensor) -> Tensor | None:
    """Return the numbers of a tensor as a plain one; None if it has none that can be infinite, or is nested."""
    local = local_tensor(x)
    x = (x if local is None else local).detach()  # of a sharded one, this rank's part
    if x.is_meta or x.is_nested or x.is_quantized or not (x.is_floating_point() or x.is_complex()):
        return None
    if x.layout is torch.strided:
        return x
    return x.coalesce().values() if x.layout is torch.sparse_coo else x.values()


class OutOfTime(Exception):
    """A replay was abandoned between two calls, because its time is over."""


class Player:
    """Makes the calls of one step again, unchanged or with one thing changed.

    Args:
        sources: gets the line of the user's code that is being run.
        change: returns the replacement for an external tensor.
        is_training: the mode to run every model in, instead of its own.
        forward_only: leave out backward, clipping and optimizer steps.
        stops_at_step: run backward, but leave out clipping and optimizer steps.
        keeps_generators: let models draw the random numbers they drew the first time.
        autocasts: switch autocast on where it was on.
        earlier: the results of earlier steps of the same replay into whose graphs this one continues.
        until: the time, as `time.monotonic` says it, after which no further call is made.
    """

    def __init__(
        self,
        sources: Sources | None = None,
        *,
        change: Callable[[Tensor], Tensor] | None = None,
        is_training: bool | None = None,
        forward_only: bool = False,
        stops_at_step: bool = False,
        keeps_generators: bool = True,
        autocasts: bool = True,
        earlier: Mapping[int, Sequence[Tensor]] = MappingProxyType({}),
        until: float = math.inf,
    ) -> None:
        self.losses: list[Tensor] = []
        self.outputs: list[Any] = []
        """What the models returned, in order."""
        self._change = change
        self._is_training = is_training
        self.roots: list[Tensor] = []
        """What backward started from."""
        self._forward_only = forward_only
        self._stops_at_step = stops_at_step
        self._keeps_generators = keeps_generators
        self._autocasts = autocasts
        self.results: list[Tensor] = []
        """The tensors that the calls returned, in order."""
        self._absent: set[int] = set()
        """The numbers of the results that need a backward which was left out."""
        self._has_left_out_backward = False
        self._earlier = earlier
        self._external: dict[int, Tensor] = {}
        self._sources = sources
        self._until = until

    def play(self, entries: Sequence[TapeEntry]) -> None:
        """Make the calls.

        Raises:
            OutOfTime: the time is over.
        """
        for entry in entries:
            if time.monotonic() > self._until:
                raise OutOfTime
            if self._sources is not None:
                self._sources.stand_in = getattr(entry, "line", None)
            if getattr(entry, "raised", False):
                with contextlib.suppress(Exception):  # as the loop did; what the call did before it raised counts
                    self._make(entry)
            else:
                self._make(entry)

    def _make(self, entry: TapeEntry) -> None:
        if isinstance(entry, ModelEntry):
            self._call_model(entry)
        elif isinstance(entry, FunctionEntry):
            self._call_function(entry)
        elif isinstance(entry, BackwardEntry):
            self._run_backward(entry)
        elif isinstance(entry, StepEntry) and self._forward_only:
            for closure in entry.closures[:1]:
                self.play(closure)
        elif self._forward_only or self._stops_at_step:
            return
        elif isinstance(entry, LoopEntry):
            entry.function(*self._fill_in(entry.args), **self._fill_in(entry.kwargs))
        else:
            self._step(entry)

    def _call_model(self, call: ModelEntry) -> None:
        if self._keeps_generators:
            restore_torch(call.generators)
        is_training = call.is_training if self._is_training is None else self._is_training
        if call.module.training != is_training or self._is_training is not None:
            call.module.train(is_training)
        args, kwargs = self._fill_in(call.args), self._fill_in(call.kwargs)
        with self._in_ambient(call.ambient), _ending_modules_at(self._until):
            if call.replaced:
                output = torch.func.functional_call(call.module, self._fill_in(call.replaced), args, kwargs)
            else:
                output = call.module(*args, **kwargs)
        self.outputs.append(output)
        self._keep(output, call.num_results)

    def _call_function(self, call: FunctionEntry) -> None:
        """Call a function, except for those that use gradients which were not computed: clipping reads `p.grad`."""
        needed = (found.number for found in references((call.args, call.kwargs)) if isinstance(found, Result))
        if self._absent and not self._absent.isdisjoint(needed):
            self._leave_out(call)
            return
        with self._in_ambient(call.ambient):
            result = call.function(*self._fill_in(call.args), **self._fill_in(call.kwargs))
        if self._has_left_out_backward and result is None and call.num_results:
            self._leave_out(call)
        else:
            self._keep(result, call.num_results)

    def _leave_out(self, call: FunctionEntry) -> None:
        self._absent.update(range(len(self.results), len(self.results) + call.num_results))
        self.results += [torch.empty(0)] * call.num_results

    def _run_backward(self, call: BackwardEntry) -> None:
        roots = self._fill_in(call.roots)
        given: tuple[Any, ...] = self._fill_in(call.args)
        gradients, retain_graph, create_graph, inputs = (*given, None, None, None, None)[:4]
        if call.loss is not None:
            self.losses.append(roots[0].detach().clone())
            self.roots.append(roots[0])
        if self._forward_only:
            self._has_left_out_backward = True
            return
        if call.kwargs:  # as torch called it; `backward` would load sympy, in order to check gradients that it is given
            module, name = engine_module()
            getattr(module, name)(tuple(roots), *given, **call.kwargs)
            return
        torch.autograd.backward(
            roots, gradients, retain_graph=retain_graph, create_graph=bool(create_graph), inputs=inputs or None
        )

    def _step(self, call: StepEntry) -> None:
        for group, settings in zip(call.optimizer.param_groups, call.settings, strict=True):
            group.update(settings)
        if not call.closures:
            call.optimizer.step()
            return
        rest = iter(call.closures)

        def closure() -> Any:
            with torch.enable_grad():
                self.play(next(rest))
            return self.losses[-1] if self.losses else None

        call.optimizer.step(closure)

    @contextlib.contextmanager
    def _in_ambient(self, ambient: Ambient) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(ambient.gradients))
            for kind, enabled, dtype in ambient.autocast if self._autocasts else ():
                stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype))
            yield

    def _keep(self, result: Any, num_results: int) -> None:
        found = list(tensors_of(result))
        if len(found) != num_results:
            raise NotReplayable(f"in its replay a call returned {len(found)} tensors instead of {num_results}")
        self.results.extend(found)

    def _fill_in(self, value: Any) -> Any:
        return fill_in(value, self.results, self._tensor_for)

    def _tensor_for(self, external: ExternalTensor) -> Tensor:
        if isinstance(external, EarlierStepTensor) and external.step in self._earlier:
            return self._earlier[external.step][external.number]
        known = self._external.get(id(external))
        if known is None:
            with hidden_from_modes():  # the copy is not an op of the step
                known = external.new_copy()
                if self._change is not None:
                    known = self._change(known)
                self._external[id(external)] = known
        return known


@contextlib.contextmanager
def _ending_modules_at(until: float) -> Iterator[None]:
    """Inside the block, let the next module that this thread calls raise `OutOfTime` when the time is over."""
    thread = threading.get_ident()  # the script's other threads go on calling modules of their own

    def check(_: nn.Module, __: Any) -> None:
        if threading.get_ident() == thread and time.monotonic() > until:
            raise OutOfTime

    hook = None if math.isinf(until) else register_module_forward_pre_hook(check)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


class StepPlayer:
    """Plays one step after the other and keeps the results into whose graphs later steps continue."""

    def __init__(
        self, tapes: Sequence[StepTape], gate: CollectiveGate | None = None, *, until: float = math.inf
    ) -> None:
        self._gate = gate
        self._until = until
        self._reached = {step for tape in tapes for step in tape.reached_steps}
        self._earlier: dict[int, list[Tensor]] = {}

    def play(self, tape: StepTape, sources: Sources | None = None) -> list[Tensor]:
        """Play a step and return its losses."""
        player = Player(sources, earlier=self._earlier, until=self._until)
        # A recipe computes through a dispatch mode, which `swapped_in` hides.
        with seen_as_in_training(), self._gate or contextlib.nullcontext():
            player.play(tape.entries)
        if self._gate is not None:
            self._gate.check()
        if tape.step in self._reached:
            self._earlier[tape.step] = player.results
        return player.losses


def _same_losses(replayed: Sequence[Tensor], taped: Sequence[Tensor]) -> bool:
    return len(replayed) == len(taped) and all(same_bits(a, b) for a, b in zip(replayed, taped, strict=True))


@contextlib.contextmanager
def _leaving(gate: CollectiveGate | None) -> Iterator[None]:
    """Tell the other ranks when an exception ends a replay."""
    try:
        yield
    except BaseException as error:
        if gate is not None:
            gate.leave(error)
        raise


@contextlib.contextmanager
def discarding_output() -> Iterator[None]:
    """Discard what models print during a replay: the user has seen it already."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
