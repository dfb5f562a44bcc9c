"""Writes the calls of the loop and the metrics of each step into the run as they happen."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from roundoff.kernels.host_copies import LateNumber, is_there
from roundoff.record.loop.calls import learning_rates, read_detail
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import StepClock
from roundoff.report.tensorboard import TensorBoard, weights_and_gradients
from roundoff.runs import Call, CallDetail, CallKind, Metrics, RunWriter, StepDetail

_STEPS_IN_FULL = 100
"""After this many steps, calls that only repeat those of the step before are left out."""
_MAX_CALLS = 20_000
"""After this many calls were written, those of a step are written only if they are new, or in ever fewer steps."""
_DENSE_STEPS = 10_000
_NUM_LAST = 1000
_LAST_SECONDS = 60.0
"""Metrics wait for this many steps, or this long, before they are written or left out: the last ones all are."""
_FLUSH_SECONDS = 5.0
_STEPS_BETWEEN_HISTOGRAMS = 100

_MAX_CLOSED = 64
"""The lines of this many steps that were not taped are made together, which takes far less time than one by one."""

Number: TypeAlias = Tensor | float | LateNumber
_Pattern: TypeAlias = tuple[tuple[CallKind, int, str | None, bool], ...]
_NotedCall: TypeAlias = tuple[CallKind, int, float, CallDetail]
"""Kind, microbatch, time and details."""


def is_kept(step: int, *, dense: int) -> bool:
    """Return whether to write about a step in a long training: the first ones all, then ever fewer.

    Every second one up to twice as many, every fourth one up to four times as many, and so on.

    >>> [step for step in range(40) if is_kept(step, dense=4)]
    [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    """
    return step < dense or step % (1 << (step // dense).bit_length()) == 0


def next_kept(step: int, *, dense: int) -> int:
    """Return the first step from `step` on that is kept.

    >>> [next_kept(step, dense=4) for step in (3, 5, 9, 13, 17)]
    [3, 6, 12, 16, 24]
    """
    stride = 1 << (step // dense).bit_length() if step >= dense else 1
    step = -(-step // stride) * stride
    while not is_kept(step, dense=dense):
        step += stride
    return step


class StepJournal:
    """Writes the calls of every step and one line of metrics for each, and for TensorBoard if there is a board.

    Of long trainings ever fewer steps are written, so that a run's folder does not grow with every step.
    """

    def __init__(
        self,
        writer: RunWriter,
        clock: StepClock,
        *,
        board: TensorBoard | None = None,
        dense_steps: int = _DENSE_STEPS,
        max_calls: int = _MAX_CALLS,
        num_last: int = _NUM_LAST,
    ) -> None:
        self._writer = writer
        self._board = board
        self._clock = clock
        self._began = self._step_began = self._flushed = time.perf_counter()
        self._calls: list[_NotedCall] = []
        self._late: list[LateNumber] = []
        """Numbers among the details of the open step's calls that are on their way from an accelerator."""
        self._closed: list[_ClosedStep] = []
        """Steps that have no line yet."""
        self._dense_steps = dense_steps
        self._num_last = num_last
        self._waiting: deque[_ClosedStep] = deque()
        """The last steps of a long training."""
        self._num_calls_left = max_calls
        self._patterns: dict[bool, _Pattern | None] = {True: None, False: None}
        """The calls of the last step that was taped, and of the last one that was not and has no calls of models."""
        self._known_patterns: set[_Pattern] = set()

    @property
    def open_calls(self) -> list[Call]:
        """What the loop did in the open step so far."""
        return [_call_of(self._clock.step, *noted) for noted in self._calls]

    def has_called(self, kind: CallKind) -> bool:
        """Return whether the loop has made a call of this kind in the open step."""
        return any(noted[0] == kind for noted in self._calls)

    def call(self, call: CallKind, detail: CallDetail) -> None:
        """Note something the loop did; most of it is never written, so it becomes a `Call` only then."""
        self._calls.append((call, self._clock.microbatch, time.perf_counter() - self._began, detail))

    def await_numbers(self, detail: CallDetail) -> None:
        """Do not write the open step before the numbers among the details of a call have arrived."""
        values = (getattr(detail, field.name) for field in fields(detail))
        self._late += [value for value in values if isinstance(value, LateNumber)]

    def close_step(
        self,
        *,
        losses: Sequence[Number],
        eval_losses: Sequence[Number],
        optimizer: Optimizer | None,
        name: str | None,
        scale: Number | None,
        grad_norm: float | None,
        update_norm: float | None,
        is_taped: bool = True,
        is_late: bool = False,
    ) -> None:
        """Write the line of the step that closes, and its calls unless they are those of the step before.

        `name` is that of the optimizer: two of a class have different ones. `is_taped` says whether
        all calls of models were seen, `is_late` that numbers may be on their way from an accelerator.
        """
        clock = self._clock
        now = time.perf_counter()
        rates = learning_rates(optimizer) if clock.num_attempts else ()
        step = _ClosedStep(
            clock.step,
            now,
            self._calls,
            is_taped,
            losses,
            eval_losses,
            rates[0] if rates else None,
            scale,
            clock.skipped,
            grad_norm,
            update_norm,
            now - self._step_began,
            name if clock.optimizer else None,
        )
        late, self._late = self._late, []
        if is_late:
            if isinstance(scale, Tensor) and not scale.is_cpu:
                step.scale = LateNumber(scale)  # as it is now
            step.late = [*late, *losses, *eval_losses, step.scale]
        else:
            step.read()
        self._step_began, self._calls = now, []
        self._closed.append(step)
        if is_taped or self._board is not None or len(self._closed) >= _MAX_CLOSED:
            self._write_closed()
        if now - self._flushed > _FLUSH_SECONDS:
            self._write_closed()
            self._writer.flush()
            self._flushed = now

    def _write_closed(self, *, waits: bool = False) -> None:
        """Write the lines of steps in their order, up to one whose numbers are on their way from an accelerator."""
        closed = self._closed
        if not waits and any(step.late for step in closed):
            closed = list(itertools.takewhile(lambda step: all(map(is_there, step.late)), closed))
        self._closed = self._closed[len(closed) :]
        for step in closed:
            if step.late:
                step.read()
            self._write_calls(step)
            self._write_line(step)
            if self._board is not None:
                self._board.metrics(step.metrics())

    def _write_line(self, step: _ClosedStep) -> None:
        if step.step < self._dense_steps:
            self._writer.write(step.metrics())
            return
        waiting = self._waiting
        waiting.append(step)
        while len(waiting) > self._num_last or step.time - waiting[0].time > _LAST_SECONDS:
            oldest = waiting.popleft()
            if is_kept(oldest.step, dense=self._dense_steps) or oldest.eval_loss is not None:
                self._writer.write(oldest.metrics())

    def draw(self, sites: Sites) -> None:
        """Write histograms of weights and gradients, in every hundredth step."""
        if self._board is None or self._clock.step % _STEPS_BETWEEN_HISTOGRAMS:
            return
        named = ((sites.of_parameter(parameter)[1] or "unnamed", parameter) for parameter in sites.parameters())
        self._board.histograms(self._clock.step, weights_and_gradients(named))

    def close(self) -> None:
        """Write what is left, and close the board."""
        self.flush()
        if self._board is not None:
            self._board.close()

    def flush(self) -> None:
        """Write everything now, and wait for what is on its way from an accelerator."""
        self._write_closed(waits=True)
        while self._waiting:
            self._writer.write(self._waiting.popleft().metrics())
        self._writer.flush()
        self._flushed = time.perf_counter()

    def _write_calls(self, closed: _ClosedStep) -> None:
        calls, is_taped, step = closed.calls, closed.is_taped, closed.step
        closed.calls = []
        pattern: _Pattern = tuple([
            (kind, microbatch, detail.optimizer, detail.skipped)
            if isinstance(detail, StepDetail)
            else (kind, microbatch, None, False)
            for kind, microbatch, _, detail in calls
            if is_taped or kind != "forward"
        ])  # fmt: skip
        before = self._patterns[is_taped]
        if before is None and not is_taped:
            before = tuple(call for call in self._patterns[True] or () if call[0] != "forward")
        self._patterns[is_taped] = pattern
        if step >= _STEPS_IN_FULL and pattern == before:
            return
        if self._num_calls_left < 0 and pattern in self._known_patterns and not is_kept(step, dense=_STEPS_IN_FULL):
            return
        if len(self._known_patterns) < _STEPS_IN_FULL:
            self._known_patterns.add(pattern)
        self._num_calls_left -= len(calls)
        for noted in calls:
            self._writer.write(_call_of(step, *noted))


@dataclass(slots=True)
class _ClosedStep:
    """A step that has ended, and what goes into its line; not frozen, since one is made in every step."""

    step: int
    time: float
    calls: list[_NotedCall]
    is_taped: bool
    losses: Sequence[Number]
    eval_losses: Sequence[Number]
    lr: float | None
    scale: Number | None
    skipped: bool
    grad_norm: float | None
    update_norm: float | None
    seconds: float
    optimizer: str | None
    late: Sequence[Any] = ()
    """What may not have arrived yet."""
    loss: float | None = None
    eval_loss: float | None = None
    loss_scale: float | None = None

    def read(self) -> None:
        """Take the numbers, now that they are there, and let go of the tensors that hold them."""
        self.loss = mean(self.losses) if self.losses else None
        self.eval_loss = mean(self.eval_losses) if self.eval_losses else None
        self.loss_scale = None if self.scale is None else float(self.scale)
        self.losses, self.eval_losses, self.scale, self.late = (), (), None, ()

    def metrics(self) -> Metrics:
        """Return its line."""
        return Metrics(
            step=self.step,
            loss=self.loss,
            eval_loss=self.eval_loss,
            lr=self.lr,
            loss_scale=self.loss_scale,
            skipped=self.skipped,
            grad_norm=self.grad_norm,
            update_norm=self.update_norm,
            seconds=self.seconds,
            optimizer=self.optimizer,
        )


def _call_of(step: int, kind: CallKind, microbatch: int, seconds: float, detail: CallDetail) -> Call:
    return Call(step=step, call=kind, microbatch=microbatch, seconds=seconds, detail=read_detail(kind, detail))


def mean(values: Sequence[Number]) -> float | None:
    """Return the mean of scalars, or None of none."""
    if len(values) == 1:
        return float(values[0])
    return math.fsum(map(float, values)) / len(values) if values else None
