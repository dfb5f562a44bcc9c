"""Lets somebody run every op of a training in their own way, told where in the model the op belongs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol
from weakref import ref

from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES, Phase, StepClock, find_leaves, has_optimizer
from roundoff.record.ops.mode_switch import ModeSwitch
from roundoff.record.ops.op_table import OpInfo, OpKind, describe_op
from roundoff.record.ops.site_tracking import SiteTrackingMode
from roundoff.record.torch_private import (
    correct_mode_flags,
    is_only_mode,
    never_compiled,
    num_running_modules,
    num_running_steps,
)


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
    """Who runs the ops."""

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` and return what it returned; what this raises reaches the training."""


class OpInterceptor:
    """Follows the loop and hands every op that computes something to `runner`."""

    def __init__(self, runner: OpRunner, *, on_step_end: Callable[[int], None] | None = None) -> None:
        self.has_other_threads = False
        """Whether something was computed in a thread whose ops are not seen."""
        self._on_step_end = on_step_end
        self._sites = Sites()
        self._leaves: list[ref[Tensor]] | None = None
        self._clock = StepClock(self._close_step, has_optimizer=lambda: has_optimizer(self._leaves or ()))
        self._clock.hears_functions = True
        self._mode = _InterceptingMode(
            runner, sites=self._sites, clock=self._clock, on_forward=self._function_forward, on_error=self.failed
        )
        self._switch = ModeSwitch(self._mode)
        self._error: Exception | None = None

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._clock.step

    def place_of(self, op: str) -> OpPlace:
        """Return the place of an op that the code which is running now is about to call."""
        stack = self._mode.stack
        return OpPlace(self._sites.names[stack[-1] if stack else 0], PHASES[self._clock.phase], op)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; compiled models run eagerly in it, for compiled code shows no ops."""
        try:
            with observing_loop(self):
                self._switch.turn(on=True, listening=False)
                yield
                if self._clock.has_begun:
                    self._close_step()
        finally:
            self._switch.turn(on=False, listening=False)
            correct_mode_flags()
        if self._error is not None:
            raise self._error

    # -- LoopObserver --------------------------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site."""
        by_loop = self._mode.is_called_by_loop(module)
        if by_loop:
            self._clock.sees_modules = True
            self._clock.hears_functions = False
            self._switch.place_innermost()
        self._mode.enter(module, by_loop=by_loop)

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Pop the module's site."""
        self._mode.leave(module)

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Begin the backward phase."""
        if not self._clock.in_backward:
            if self._mode.running or self._clock.in_step:
                self._mode.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps())
            if self._leaves is None:
                self._leaves = find_leaves(roots)
            self._switch.place()
        self._clock.backward_enter(is_part_of_forward=is_part_of_forward)

    def backward_leave(self) -> None:
        """End the backward phase."""
        if self._clock.backward_leave():
            self._mode.learn_gradients(self._sites.parameters())
            self._mode.await_forward()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Begin the optimizer's phase."""
        if self._mode.running or self._clock.in_step:
            self._mode.forget_interrupted(num_modules=num_running_modules(), num_steps=num_running_steps() - 1)
        self._switch.place()
        self._clock.step_enter(optimizer)
        self._mode.begin_optimizer(optimizer)

    def step_leave(self, optimizer: Optimizer) -> None:
        """End it."""
        self._mode.end_optimizer()
        self._clock.step_leave(optimizer)
        self._mode.await_forward()

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        self._clock.step_enter(optimizer)
        self._clock.step_leave(optimizer, skipped=True)
        self._mode.await_forward()

    def closure_enter(self) -> None:
        """Nothing: the forward inside a closure says enough."""

    def closure_leave(self) -> None:
        """Nothing."""

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing."""

    def call_ended(self, call: str) -> None:
        """Nothing."""

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what changes where steps end and what sites there are; what was compiled now is to run eagerly."""
        self._switch.place()
        if call == "zero_grad":
            self._clock.zero_grad()
            self._mode.end_optimizer()
        elif call == "load":
            self._sites.refresh()

    def failed(self, error: Exception) -> None:
        """Keep the error for the end of the block: from here on places would be wrong."""
        self._error = self._error or error
        self._mode.paused = True

    def other_thread(self) -> None:
        """Remember that there is more than is seen."""
        self.has_other_threads = True

    def _function_forward(self) -> None:
        self._clock.forward(with_gradients=True)

    def _close_step(self) -> None:
        if self._on_step_end is not None:
            self._on_step_end(self._clock.step)
        self._mode.forget_older_nodes()
        self._sites.refresh()


class _InterceptingMode(SiteTrackingMode):
    """Hands every op that computes something to a runner."""

    def __init__(
        self,
        runner: OpRunner,
        *,
        sites: Sites,
        clock: StepClock,
        on_forward: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(sites=sites, clock=clock, sources=None, on_forward=on_forward, on_error=on_error)
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
