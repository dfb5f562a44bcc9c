"""What a watch looks with and writes to: made once, and told what the loop does by those who follow its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import StepClock, has_optimizer
from roundoff.replay.snapshots import Snapshots
from roundoff.replay.state import Training
from roundoff.replay.tape_recorder import TapeRecorder
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import RunWriter
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.budget import TimeBudget
from roundoff.watch.detector import AnomalyDetector
from roundoff.watch.facts.collector import FactCollector
from roundoff.watch.facts.uncleared_gradients import UnclearedGradients
from roundoff.watch.journal import StepJournal
from roundoff.watch.settings import WatchSettings


class Instruments:
    """Everything by which one training is watched.

    Args:
        writer: of the run folder.
        settings: how to watch.
        sites: names for modules and parameters.
        flight: where the loop is, for whoever looks after the process has died.
        board: where to write for TensorBoard, too.
        on_close: called when a step closes, before the next one is counted.
        on_forward: called when the forward of a step begins in a loop that calls no module.
    """

    def __init__(
        self,
        writer: RunWriter,
        settings: WatchSettings,
        *,
        sites: Sites,
        flight: FlightRecorder,
        board: TensorBoard | None,
        on_close: Callable[[], None],
        on_forward: Callable[[], None],
    ) -> None:
        self.writer = writer
        self.settings = settings
        self.sites = sites
        self.flight = flight
        self.leaves: list[ref[Tensor]] | None = None
        """What the first backward led to; None before it."""
        self.clock = StepClock(on_close, has_optimizer=lambda: has_optimizer(self.leaves or ()))
        self.journal = StepJournal(writer, self.clock, board=board)
        self.budget = TimeBudget(settings.budget)
        self.training = Training()
        self.snapshots = Snapshots(self.training, memory_bytes=settings.snapshot_bytes)
        self.lookout = AnomalyDetector(writer, sites=sites, budget=self.budget)
        self.facts = FactCollector(
            writer, self.training, sites=sites, budget=self.budget, kept_batches=settings.kept_batches
        )
        self.carried = UnclearedGradients()
        self.tape = TapeRecorder(is_state=self.training.is_state, on_forward=on_forward, on_error=self._tape_failed)
        self.tape.on_loss = self._see_loss_function
        self.tape.on_scalar = self.lookout.see_scalar

    @property
    def is_fully_watched(self) -> bool:
        """Whether everything is looked at in the open step, whatever it costs."""
        return self.clock.step < self.settings.full_steps or self.settings.every_step

    def _see_loss_function(self, args: tuple[Any, ...], result: Any) -> None:
        if not torch.is_grad_enabled():
            self.lookout.see_eval_loss(result)
        elif self.is_fully_watched:
            self.facts.see_criterion(args)

    def _tape_failed(self, error: Exception) -> None:
        self.tape.step.why_not_replayable = f"{type(error).__name__}: {error}"
