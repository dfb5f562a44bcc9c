"""What the loop did and what each step came to, written into the run as it happens."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from roundoff.record.loop.calls import learning_rates
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import StepClock
from roundoff.report.tensorboard import TensorBoard, weights_and_gradients
from roundoff.runs import Call, CallKind, Metrics, RunWriter, StepDetail, call_detail

_STEPS_IN_FULL = 100
"""After so many steps, calls that only repeat those of the step before are left out."""
_FLUSH_SECONDS = 5.0
_STEPS_BETWEEN_HISTOGRAMS = 100


class StepJournal:
    """Writes the calls of every step and one line of metrics for each, and for TensorBoard if there is a board."""

    def __init__(self, writer: RunWriter, clock: StepClock, *, board: TensorBoard | None = None) -> None:
        self._writer = writer
        self._board = board
        self._clock = clock
        self._began = self._step_began = self._flushed = time.perf_counter()
        self._calls: list[Call] = []
        self._pattern: list[tuple[Any, ...]] = []

    @property
    def open_calls(self) -> list[Call]:
        """What the loop did in the open step so far."""
        return self._calls

    def call(self, call: CallKind, detail: Mapping[str, Any]) -> None:
        """Note something the loop did."""
        clock = self._clock
        self._calls.append(
            Call(
                step=clock.step,
                call=call,
                microbatch=clock.microbatch,
                seconds=time.perf_counter() - self._began,
                detail=call_detail(call, detail),
            )
        )

    def close_step(
        self,
        *,
        losses: list[Tensor],
        eval_losses: list[Tensor],
        optimizer: Optimizer | None,
        scale: Tensor | None,
        grad_norm: float | None,
        update_norm: float | None,
    ) -> Metrics:
        """Write the line of the step that closes, and its calls unless they are those of the step before."""
        clock = self._clock
        now = time.perf_counter()
        rates = learning_rates(optimizer) if clock.num_attempts else []
        metrics = Metrics(
            step=clock.step,
            loss=mean(losses),
            eval_loss=mean(eval_losses),
            lr=rates[0] if rates else None,
            loss_scale=None if scale is None else float(scale),
            skipped=clock.skipped,
            grad_norm=grad_norm,
            update_norm=update_norm,
            seconds=now - self._step_began,
            optimizer=clock.optimizer,
        )
        self._step_began = now
        self._writer.write(metrics)
        self._write_calls()
        if now - self._flushed > _FLUSH_SECONDS:
            self.flush()
        return metrics

    def show(self, metrics: Metrics) -> None:
        """Write the numbers of a step for TensorBoard."""
        if self._board is not None:
            self._board.metrics(metrics)

    def draw(self, sites: Sites) -> None:
        """Write histograms of weights and gradients, in every hundredth step."""
        if self._board is None or self._clock.step % _STEPS_BETWEEN_HISTOGRAMS:
            return
        named = ((sites.of_parameter(parameter)[1] or "unnamed", parameter) for parameter in sites.parameters())
        self._board.histograms(self._clock.step, weights_and_gradients(named))

    def close(self) -> None:
        """Let nothing of what was written for TensorBoard be missing."""
        if self._board is not None:
            self._board.close()

    def flush(self) -> None:
        """Write everything down now."""
        self._writer.flush()
        self._flushed = time.perf_counter()

    def _write_calls(self) -> None:
        calls, self._calls = self._calls, []
        pattern = [(call.call, call.microbatch, call.detail_as(StepDetail).skipped) for call in calls]
        if self._clock.step < _STEPS_IN_FULL or pattern != self._pattern:
            for call in calls:
                self._writer.write(call)
        self._pattern = pattern


def mean(values: list[Tensor]) -> float | None:
    """Return the mean of scalars, or None of none."""
    return math.fsum(float(value) for value in values) / len(values) if values else None
