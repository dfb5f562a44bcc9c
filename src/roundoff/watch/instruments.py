"""What a watch looks with and writes to: made once, and told what the loop does by those who follow its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from roundoff.record.sites import Sites
from roundoff.record.steps import StepClock, has_optimizer
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import RunWriter
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.budget import Budget
from roundoff.watch.carried import CarriedGradients
from roundoff.watch.facts import Facts
from roundoff.watch.journal import Journal
from roundoff.watch.lookout import Lookout
from roundoff.watch.settings import WatchSettings
from roundoff.watch.snapshots import Snapshots
from roundoff.watch.state import Training
from roundoff.watch.tape import Tape


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
        self.journal = Journal(writer, self.clock, board=board)
        self.budget = Budget(settings.budget)
        self.training = Training()
        self.snapshots = Snapshots(self.training, memory_bytes=settings.snapshot_bytes)
        self.lookout = Lookout(writer, sites=sites, budget=self.budget)
        self.facts = Facts(writer, self.training, sites=sites, budget=self.budget, kept_batches=settings.kept_batches)
        self.carried = CarriedGradients()
        self.tape = Tape(is_state=self.training.is_state, on_forward=on_forward, on_error=self._tape_failed)
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
        self.tape.step.unfit = f"{type(error).__name__}: {error}"
