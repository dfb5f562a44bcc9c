"""What is looked at in every step: losses, gradients, updates; and what among them cannot be right."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from roundoff.diagnose.loss.spike_detector import SpikeDetector
from roundoff.record.loop.scaled_optimizer import as_scaled
from roundoff.record.loop.sites import Sites
from roundoff.record.torch_private import hidden_from_modes
from roundoff.replay.player import first_nonfinite_tensor
from roundoff.replay.state import parameters_of
from roundoff.runs import Anomaly, AnomalyKind, JsonValue, RunWriter
from roundoff.watch.budget import TimeBudget
from roundoff.watch.measures import ParameterMeasures, gradient_norm

_MAX_WRITTEN = 50
"""Anomalies beyond these are consequences of consequences."""
_NUM_COMPARED = 10
"""So many losses at the start and at the end tell whether it went down."""
_TABLE_PART, _NORMS_PART = 0.25, 0.4
"""What the table of parameters and the norms of gradients may take of the budget."""


class AnomalyDetector:
    """Keeps what one step shows, and notes anomalies.

    A loss on the CPU is read at once; on an accelerator nothing waits for it until the step is over.
    """

    def __init__(self, writer: RunWriter, *, sites: Sites, budget: TimeBudget) -> None:
        self.anomalies: list[Anomaly] = []
        self.losses: list[Tensor] = []
        self.eval_losses: list[Tensor] = []
        self.grad_norm: float | None = None
        self.update_norm: float | None = None
        self._new: list[Anomaly] = []
        self._step = 0
        self._writer = writer
        self._sites = sites
        self._budget = budget
        self._measures = ParameterMeasures(sites)
        self._spikes = SpikeDetector()
        self._unread = 0
        self._bad_buffers: set[str] = set()
        self._suspect: float | None = None
        self._first_losses: list[float] = []
        self._last_losses: deque[float] = deque(maxlen=_NUM_COMPARED)

    @property
    def loss_has_fallen(self) -> bool:
        """Whether the last losses are clearly lower than the first."""
        first, last = self._first_losses, self._last_losses
        return bool(first) and math.fsum(last) / len(last) < 0.8 * math.fsum(first) / len(first)

    def new_step(self, step: int) -> None:
        """Forget the step that closed."""
        self._step = step
        self.losses, self.eval_losses = [], []
        self.grad_norm = self.update_norm = None
        self._unread = 0

    @property
    def has_new(self) -> bool:
        """Whether there are anomalies that nobody has taken yet."""
        return bool(self._new)

    def take_new(self) -> list[Anomaly]:
        """Return the anomalies that came since the last time."""
        new, self._new = self._new, []
        return new

    def note(
        self,
        kind: AnomalyKind,
        *,
        phase: str | None,
        name: str | None = None,
        value: float | None = None,
        detail: dict[str, JsonValue] | None = None,
    ) -> None:
        """Note something that cannot be right."""
        anomaly = Anomaly(step=self._step, kind=kind, phase=phase, name=name, value=value, detail=detail or {})
        self.anomalies.append(anomaly)
        self._new.append(anomaly)
        if len(self.anomalies) <= _MAX_WRITTEN:
            self._writer.write(anomaly)

    def see_loss(self, loss: Tensor) -> None:
        """Keep the loss that a backward starts from, without its scale."""
        self._suspect = None
        with hidden_from_modes():
            self.losses.append(loss.detach().clone())
            if loss.device.type == "cpu":
                self._read_losses()

    def see_scalar(self, x: Any) -> None:
        """Look at a number that the loop reads for itself: it may be a loss that it will not go backward from."""
        if isinstance(x, Tensor) and x.grad_fn is not None and x.numel() == 1 and x.device.type == "cpu":
            value = float(x.detach())
            is_known = any(anomaly.kind == "loss" and anomaly.step == self._step for anomaly in self.anomalies)
            self._suspect = None if math.isfinite(value) or is_known else value

    def drop_suspect(self) -> bool:
        """Note the bad loss that the loop saw and did not go backward from, if there is one; say whether."""
        value, self._suspect = self._suspect, None
        if value is None:
            return False
        self.note("loss", phase="forward", value=value)
        return True

    def see_eval_loss(self, output: Any) -> None:
        """Keep the loss that an evaluation computed, if that is what a call gave."""
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            self.eval_losses.append(loss.detach().reshape(()))

    def see_gradients(self, optimizer: Optimizer, *, fully: bool, always: bool) -> None:
        """Look at the gradients that an optimizer is about to use, as far as the budget allows."""
        parameters, scaled = parameters_of(optimizer), as_scaled(optimizer)
        if fully or self._budget.has_room("table", part=_TABLE_PART):
            began = time.perf_counter()
            with hidden_from_modes():
                self._measures.begin(parameters)
            self._budget.spend(time.perf_counter() - began, "table")
        if fully or always or self._budget.has_room("norms", part=_NORMS_PART):
            began = time.perf_counter()
            with hidden_from_modes():
                norm, bad = gradient_norm(_holders_of_gradients(optimizer, parameters))
                self.grad_norm = norm if scaled is None else norm / scaled.gradient_scale
            self._budget.spend(time.perf_counter() - began, "norms")
            if bad is not None and not (scaled is not None and scaled.may_skip):
                self.note("gradient", phase="backward", name=self._sites.of_parameter(parameters[bad])[1])

    def see_update(self) -> None:
        """Look at what the optimizer made of the weights."""
        if not self._measures.has_begun:
            return
        began = time.perf_counter()
        with hidden_from_modes():
            columns, self.update_norm = self._measures.end(self._step)
        self._budget.spend(time.perf_counter() - began, "table")
        if columns is not None:
            self._writer.write_parameters(columns)
            bad = next((place for place, l2 in enumerate(columns.l2) if not math.isfinite(l2)), None)
            if bad is not None or not math.isfinite(self.update_norm or 0.0):
                self.note("weight", phase="optimizer")

    def drop_update(self) -> None:
        """Forget the weights before an update that did not happen."""
        self._measures.drop()

    def see_buffers(self, buffers: Sequence[tuple[str, Tensor]]) -> None:
        """Note the first buffer that is not finite, unless it was noted before; one transfer from the device."""
        with hidden_from_modes():
            bad = first_nonfinite_tensor([x for _, x in buffers])
        if bad is not None and buffers[bad][0] not in self._bad_buffers:
            self._bad_buffers.add(buffers[bad][0])
            self.note("buffer", phase="forward", name=buffers[bad][0])

    def end_attempt(self) -> None:
        """Read what was left unread, now that the step is over, and see whether the loss jumped."""
        with hidden_from_modes():
            self._read_losses()
            if self.losses:
                value = math.fsum(map(float, self.losses)) / len(self.losses)
                spike = self._spikes.see(value)
                self._last_losses.append(value)
                if len(self._first_losses) < _NUM_COMPARED:
                    self._first_losses.append(value)
                if spike is not None:
                    detail: dict[str, JsonValue] = {"median": spike.median, "limit": spike.limit}
                    self.note("spike", phase="forward", value=value, detail=detail)

    def _read_losses(self) -> None:
        for loss in self.losses[self._unread :]:
            value = float(loss)
            if not math.isfinite(value):
                self.note("loss", phase="forward", value=value)
        self._unread = len(self.losses)


def _holders_of_gradients(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters, those of the model in place of ones that an optimizer keeps for itself, until it steps."""
    scaled = as_scaled(optimizer)
    stand_ins = {} if scaled is None else {id(main): parameter for parameter, main in scaled.stand_ins}
    return [stand_ins.get(id(p), p) if p.grad is None else p for p in parameters]
