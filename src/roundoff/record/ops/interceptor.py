"""Hands every op of a training to a runner, with its place in the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from roundoff.record.loop.calls import LoopCall
from roundoff.record.loop.follower import BackwardCall, LoopFollower, ModuleCall, StepAttempt
from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.step_clock import PHASES, Phase
from roundoff.record.ops.op_table import OpInfo, OpKind, describe_op
from roundoff.record.ops.site_tracking import ModeSwitch, SiteTrackingMode
from roundoff.torch_private import correct_mode_flags, is_only_mode, never_compiled


class OpPlace(NamedTuple):
    """Which op, and where it is: all calls of one op in one site and phase have the same place."""

    site: str
    phase: str
    op: str
    """`aten.addmm`: namespace and name."""

    @property
    def key(self) -> str:
        """The place as a text: `blocks.1.attn:backward:aten.mm`."""
        return f"{self.site}:{self.phase}:{self.op}"


class OpRunner(Protocol):
    """Runs the ops in its own way, such as rounded."""

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` and return its result; an exception raised here reaches the training."""


class OpInterceptor(LoopFollower):
    """Follows the loop and hands every op that computes something to `runner`."""

    def __init__(self, runner: OpRunner, *, on_step_end: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._on_step_end = on_step_end
        self.clock.hears_functions = True
        self._mode = _InterceptingMode(runner, self)
        self._switch = ModeSwitch(self._mode)
        self._error: Exception | None = None

    def place_of(self, op: str) -> OpPlace:
        """Return the place of an op that the running code is about to call."""
        stack = self.modules.sites
        return OpPlace(self.sites.names[stack[-1] if stack else 0], PHASES[self.clock.phase], op)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; compiled models run eagerly in it, because compiled code shows no ops."""
        try:
            with observing_loop(self):
                self._switch.turn(on=True, listening=False)
                yield
                if self.clock.has_begun:
                    self.close_step()
        finally:
            self._switch.turn(on=False, listening=False)
            correct_mode_flags()
        if self._error is not None:
            raise self._error

    def failed(self, error: Exception) -> None:
        """Raise the error at the end of the block: from here on, places would be wrong."""
        self._error = self._error or error
        self._mode.paused = True

    # -- hooks of LoopFollower -----------------------------------------------------------------------------------------

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Note that this is not a loop of plain functions, and move below the modes that the user has entered."""
        if call.is_by_loop:
            self.clock.hears_functions = False
            self._switch.place_innermost()

    def backward_began(self, backward: BackwardCall) -> None:
        """Make compiled code run eagerly."""
        if not backward.is_nested:
            self._switch.place()

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """Learn which gradients belong to which parameters, for clipping."""
        if is_microbatch:
            self._mode.learn_gradients(self.sites.parameters())
            self._mode.await_forward()

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """Learn which tensors of the optimizer belong to which parameters."""
        self._switch.place()
        self._mode.begin_optimizer(attempt.optimizer)

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """Forget which tensors belong to which parameters."""
        self._mode.end_optimizer()
        self._mode.await_forward()

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Wait for the next forward."""
        self._mode.await_forward()

    def loop_called(self, call: LoopCall) -> None:
        """Make what was just compiled run eagerly; forget gradients that were cleared."""
        self._switch.place()
        if call.kind == "zero_grad":
            self._mode.end_optimizer()

    def step_closed(self, step: int) -> None:
        """Pass on that a step has ended."""
        if self._on_step_end is not None:
            self._on_step_end(step)
        self._mode.forget_older_nodes()
        self.sites.refresh()


class _InterceptingMode(SiteTrackingMode):
    """Hands every op that computes something to a runner."""

    def __init__(self, runner: OpRunner, follower: LoopFollower) -> None:
        super().__init__(follower)
        self._runner = runner
        self._infos: dict[Any, OpInfo] = {}
        self._places: dict[tuple[int, Phase, str], OpPlace] = {}

    @never_compiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the runner run the op; views and `empty` run as they are."""
        info = self._infos.get(func)
        if info is None:
            info = self._infos[func] = describe_op(func)
        if self.paused or info.kind in (OpKind.NOTHING, OpKind.COLLECTIVE):
            result = func(*args, **(kwargs or {}))
            self._note_node()
            return result
        if info.kind is OpKind.COMPOSITE and is_only_mode():
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = self._runner.run_op(self._place(info, args), info, func, args, kwargs or {})
        if info.loses_versions:
            increment_version([x for x in args[0] if x.device.type == "cpu" and not x.is_inference()])
        return result

    def _place(self, info: OpInfo, args: Any) -> OpPlace:
        phase = self._phase()
        site, _, _ = self._where(phase, args)
        known = self._places.get((site, phase, info.name))
        if known is None:
            known = OpPlace(self._sites.names[site], PHASES[phase], info.name)
            self._places[site, phase, info.name] = known
        return known
