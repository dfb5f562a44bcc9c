"""One recording under way: follows the loop, turns the recorder on and off, and has each step written as it closes."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.record.loop import observing_loop
from roundoff.record.op_table import tensors_in
from roundoff.record.recorder import OpRecorder
from roundoff.record.reference import Reference
from roundoff.record.selection import Filter, Selection
from roundoff.record.sites import Sites
from roundoff.record.source import Sources
from roundoff.record.step_writer import StepWriter, grad_norm
from roundoff.record.steps import Phase, StepClock
from roundoff.record.torch_private import keyword_arguments, push_mode, remove_mode
from roundoff.runs import Call, JsonValue, Metrics, RecordingStoppedWarning, RunWriter


class Recording:
    """Follows the loop, turns the recorder on and off, and has each step written as it closes."""

    def __init__(
        self,
        *,
        writer: RunWriter,
        selection: Selection,
        sites: Sites,
        with_tensors: bool,
        inputs: bool,
        reference: Reference | None,
        sources: Sources | None,
    ) -> None:
        self.folder = writer.folder
        self.complaints: list[str] = []
        """What was asked for and never came; known when the block has ended."""
        self.num_steps = 0
        """How many steps the loop took, recorded or not."""
        self._writer = writer
        self._selection = selection
        self._sites = sites
        self._reference = reference
        self._filter = None if selection.takes_everything else Filter(selection)
        self._clock = StepClock(self._close_step)
        self._recorder = OpRecorder(
            sites=sites,
            clock=self._clock,
            wanted=self._filter,
            inputs=inputs,
            reference=reference,
            sources=sources,
            on_row=self._write_tensor if with_tensors else None,
            on_error=self.failed,
        )
        self._steps = StepWriter(writer, sites=sites, sources=sources)
        self._stance = contextlib.ExitStack()
        self._is_on = self._is_eager = False
        self._stopped = False
        self._recorded: set[int] = set()
        self._began = time.perf_counter()
        self._step_began = self._began
        self._scaler: Any = None
        self._unscaled: list[tuple[Tensor, Tensor]] = []
        self._last_optimizer: Optimizer | None = None
        self._losses: list[Tensor] = []
        self._has_begun = False
        self._gradients_taken = False

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._clock.step

    @property
    def num_recorded(self) -> int:
        """How many steps have been recorded so far."""
        return len(self._recorded)

    @property
    def num_events(self) -> int:
        """How many events have been written so far."""
        return self._steps.num_events

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; at its end write what is left and note what never came."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                self._switch(on=self._selection.wants_step(0))
                yield
            status = "finished"
        finally:
            self._finish(status)

    # -- LoopObserver: what the loop does ------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site; a call from the loop may close a step."""
        stack, clock = self._recorder.stack, self._clock
        from_loop = not stack and not clock.in_backward
        if from_loop and not clock.in_step:
            clock.forward(with_gradients=torch.is_grad_enabled())
        elif from_loop:
            clock.phase = Phase.FORWARD if torch.is_grad_enabled() else Phase.EVAL  # a closure inside step()
        site = self._sites.of_module(module, stack[-1] if stack else None)
        if from_loop and self._is_on:
            self._run_eagerly()
            self._begin_step()
            self._take_inputs(site, args)
        stack.append(site)

    def forward_leave(self, module: nn.Module) -> None:
        """Pop the module's site."""
        stack, clock = self._recorder.stack, self._clock
        if stack:
            stack.pop()
        if not stack and clock.in_step and not clock.in_backward:
            clock.phase = Phase.OPTIMIZER

    def backward_enter(self, roots: tuple[Any, ...]) -> None:
        """Keep the loss and begin the backward phase."""
        is_nested = self._clock.in_backward
        self._clock.backward_enter()
        if is_nested:
            return
        if self._is_on:
            self._begin_step()
        self._keep_loss(roots[0] if roots else None)
        self._call("backward", {})

    def backward_leave(self) -> None:
        """Count the microbatch."""
        self._clock.backward_leave()
        if self._clock.in_backward:
            return
        if self._is_on:
            with self._unseen():
                self._recorder.take_pending()
            self._recorder.learn_gradients(p for model in self._sites.models for p in model.parameters())
        self._recorder.new_microbatch()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Take the gradients as the optimizer sees them."""
        self._clock.step_enter(optimizer)
        if self._is_on:
            self._take_gradients(optimizer)
            self._recorder.begin_optimizer(optimizer)
        self._call("step", {"optimizer": type(optimizer).__name__, "lr": list(_learning_rates(optimizer))})

    def step_leave(self, optimizer: Optimizer) -> None:
        """Count the attempt."""
        self._recorder.end_optimizer()
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer)

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if self._is_on:
            self._take_gradients(optimizer)
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer, skipped=True)
        self._call("step", {"optimizer": type(optimizer).__name__, "skipped": True})

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what the loop did between forward, backward and step."""
        if call in ("scale", "unscale", "update_scale"):
            self._scaler = owner
        if call == "scale":
            self._unscaled.extend(zip(tensors_in(detail["scaled"]), tensors_in(detail["outputs"]), strict=False))
        if call in ("scale", "update_scale"):
            return
        if call == "zero_grad":
            self._clock.zero_grad()
            self._recorder.end_optimizer()
        if call == "load":
            self._sites.refresh()
        with self._unseen():
            self._call(call, {key: _plain(value) for key, value in detail.items()})

    def failed(self, error: Exception) -> None:
        """Stop recording with one warning; the training goes on."""
        if self._stopped:
            return
        self._stop()
        reason = f"{type(error).__name__}: {error}"
        self._writer.note(f"Recording stopped at step {self._clock.step}: {reason}")
        warnings.warn(
            f"roundoff stopped recording to '{self.folder}' at step {self._clock.step}; the training goes on.\n"
            f"  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        self._sites.refresh()
        with self._unseen():
            for model in self._sites.models:
                for parameter in model.parameters():
                    site, name = self._sites.of_parameter(parameter)
                    if name is not None:
                        self._recorder.add_named(
                            parameter, op="parameter", phase=Phase.FORWARD, site=site, parameter=name
                        )

    def _close_step(self) -> None:
        self.num_steps += 1
        if self._stopped:
            return
        with self._unseen():
            norm = self._write_step() if self._is_on else None
            self._write_metrics(norm)
        self._has_begun = self._gradients_taken = False
        self._losses.clear()
        self._step_began = time.perf_counter()
        if self._writer.stopped is not None:
            self._stop()
        else:
            self._switch(on=self._selection.wants_step(self._clock.step + 1))

    def _write_step(self) -> float | None:
        self._take_gradients(None)
        rows = self._recorder.new_step()
        self._steps.write_step(self._clock.step, self._recorder, rows)
        self._recorded.add(self._clock.step)
        return grad_norm(rows)

    def _write_metrics(self, norm: float | None) -> None:
        clock = self._clock
        rates = _learning_rates(self._last_optimizer) if clock.num_attempts else []
        losses = [float(loss) for loss in self._losses]
        self._writer.write_metrics(
            Metrics(
                step=clock.step,
                loss=math.fsum(losses) / len(losses) if losses else None,
                lr=rates[0] if rates else None,
                loss_scale=_loss_scale(self._scaler),
                skipped=clock.skipped,
                grad_norm=norm,
                seconds=time.perf_counter() - self._step_began,
                optimizer=clock.optimizer,
            )
        )

    def _switch(self, *, on: bool) -> None:
        """Put the recorder between torch and its ops, or take it away."""
        if on == self._is_on:
            return
        self._is_on = on
        if on:
            push_mode(self._recorder)
        else:
            remove_mode(self._recorder)
            self._stance.close()
            self._is_eager = False

    def _run_eagerly(self) -> None:
        """Have compiled models run eagerly as long as the recorder is on; the compiler is not loaded for nothing."""
        if not self._is_eager and "torch._dynamo" in sys.modules:
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
            self._is_eager = True

    def _stop(self) -> None:
        self._stopped = True
        self._recorder.paused = True
        self._switch(on=False)
        self._steps.discard()

    def _finish(self, status: Literal["finished", "failed"]) -> None:
        try:
            if self._has_begun or self._clock.has_begun or (self._is_on and len(self._recorder.rows)):
                self._close_step()
        finally:
            self._switch(on=False)
            self._steps.discard()
            self.complaints = self._find_complaints() if status == "finished" else []
            for complaint in self.complaints:
                self._writer.note(complaint)
            self._writer.close(status=status)

    def _find_complaints(self) -> list[str]:
        if self._stopped:
            return []
        found: list[str] = []
        steps = self._selection.steps
        missing = sorted(set(steps) - self._recorded) if steps is not None else []
        if self.num_steps == 0:
            found.append("no training step was seen, so nothing was recorded.")
        elif missing:
            which = f"step {missing[0]} was" if len(missing) == 1 else f"steps from {missing[0]} on were"
            found.append(f"{which} never reached: the loop took {self.num_steps} steps.")
        if self._filter is not None and self._recorded:
            found.extend(f"{complaint}." for complaint in self._filter.complaints())
        if self._recorder.num_unreadable:
            found.append(f"{self._recorder.num_unreadable} tensors could not be read (fake, or of a foreign subclass).")
        if self._reference is not None:
            found.extend(f"{op} has no reference: {why}" for op, why in sorted(self._reference.not_judged.items()))
        return found

    # -- tensors that no op computes -----------------------------------------------------------------------------------

    def _take_inputs(self, site: int, args: tuple[Any, ...]) -> None:
        clock, recorder = self._clock, self._recorder
        with self._unseen():
            for index, x in enumerate(_tensors_of_batch((args, keyword_arguments()))):
                recorder.add_named(
                    x, op="input", phase=clock.phase, site=site, output=index, microbatch=clock.microbatch
                )

    def _take_gradients(self, optimizer: Optimizer | None) -> None:
        """Take the gradients of one optimizer's parameters, or of all models where nobody steps; once a step."""
        if self._gradients_taken:
            return
        self._gradients_taken = True
        if optimizer is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
        else:
            parameters = [p for model in self._sites.models for p in model.parameters()]
        with self._unseen():
            for parameter in parameters:
                if parameter.grad is not None:
                    site, name = self._sites.of_parameter(parameter)
                    self._recorder.add_named(
                        parameter.grad, op="gradient", phase=Phase.BACKWARD, site=site, parameter=name
                    )

    def _write_tensor(self, x: Tensor, place: int) -> None:
        self._steps.write_tensor(self._clock.step, self._recorder, x, place)

    def _keep_loss(self, root: Any) -> None:
        """Keep the loss that backward starts from, without the factor a scaler put on it."""
        if isinstance(root, Tensor) and root.numel() == 1:
            with self._unseen():
                loss = next((plain for scaled, plain in self._unscaled if scaled is root), root)
                self._losses.append(loss.detach().clone())
        self._unscaled.clear()

    # -- small things --------------------------------------------------------------------------------------------------

    def _call(self, call: str, detail: dict[str, JsonValue]) -> None:
        clock = self._clock
        seconds = time.perf_counter() - self._began
        self._writer.write_call(
            Call(step=clock.step, call=call, microbatch=clock.microbatch, seconds=seconds, detail=detail)
        )

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        """Keep ops of our own out of the recording."""
        before = self._recorder.paused
        self._recorder.paused = True
        try:
            yield
        finally:
            self._recorder.paused = before or self._stopped


def _tensors_of_batch(value: Any) -> Iterator[Tensor]:
    """Give the tensors of a batch, looking into lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_of_batch(item)


def _plain(value: Any) -> JsonValue:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value  # type: ignore[no-any-return]


def _learning_rates(optimizer: Optimizer | None) -> list[float]:
    groups = optimizer.param_groups if optimizer is not None else []
    return [float(group["lr"]) for group in groups if "lr" in group]


def _loss_scale(scaler: Any) -> float | None:
    return None if scaler is None else float(scaler.get_scale())
