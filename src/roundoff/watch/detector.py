"""What is looked at in every step: losses, gradients, updates; and what among them cannot be right."""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.diagnose.loss.spike import SpikeDetector
from roundoff.kernels.host_copies import HostCopies, LateNumber, is_there
from roundoff.record.loop.loss_scale import as_scaled
from roundoff.record.loop.sites import Sites
from roundoff.record.structure import parameters_of
from roundoff.replay.player import nonfinite_tensors
from roundoff.runs import (
    Anomaly,
    AnomalyDetail,
    AnomalyKind,
    ExceptionDetail,
    NoDetail,
    ParameterColumns,
    RunWriter,
    SpikeDetail,
)
from roundoff.watch.budget import TimeBudget
from roundoff.watch.journal import is_kept, mean, next_kept
from roundoff.watch.measures import ParameterMeasures, gradient_norm

_MAX_WRITTEN = 50
"""Anomalies beyond these are consequences of consequences."""
_MAX_KEPT = 1000
_DENSE_STEPS = 2000
"""From then on, the table of parameters is taken in ever fewer steps."""
_STATISTICS = ("running_mean", "running_var")
_NUM_COMPARED = 10
"""This many losses at the start and at the end show whether it went down."""
_TABLE_PART, _NORMS_PART = 0.25, 0.4
"""What the table of parameters and the norms of gradients may take of the budget."""
_MAX_LATE_STEPS = 64
"""At most this many losses may be on their way from the device; then they are waited for."""
_STEPS_WITHOUT_ROOM = 4
"""Where the budget has no room, it is checked again after this many steps: in a short step even that takes long."""


class AnomalyDetector:
    """Keeps what one step shows, and notes anomalies; to be called where no mode of the user's sees it.

    A loss on the CPU is read at once; one on an accelerator when it has arrived, which may be some steps later. What
    else is measured there is read when `copies` are delivered.
    """

    def __init__(
        self, writer: RunWriter, *, sites: Sites, budget: TimeBudget, copies: HostCopies | None = None
    ) -> None:
        self.anomalies: list[Anomaly] = []
        self.losses: list[float | LateNumber] = []
        self.eval_losses: list[Tensor | LateNumber] = []
        self.reads_late = False
        """Whether losses are on an accelerator."""
        self.grad_norm: float | None = None
        self.update_norm: float | None = None
        self.new: list[Anomaly] = []
        """Those that were not taken yet."""
        self.suspect: float | None = None
        """A bad loss that the loop has read, and has not gone backward from."""
        self._step = 0
        self._writer = writer
        self._sites = sites
        self._budget = budget
        self._copies = copies or HostCopies()
        self._late: deque[tuple[int, list[float | LateNumber]]] = deque()
        """Steps and those of their losses that were not read yet, the earliest first."""
        self.measures = ParameterMeasures(sites)
        self._spikes = SpikeDetector()
        self._num_late = 0
        self.next_look = 0
        """The first step in which there may be room to look at gradients."""
        self._next_norms = 0
        self._next_table = 0
        self._bad_buffers: set[str] = set()
        self._good_buffers: set[str] = set()
        self._step_with_bad_loss = -1
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
        self._num_late = 0
        if self.measures.has_begun:
            self.drop_update()  # of an optimizer that raised

    def take_new(self) -> list[Anomaly]:
        """Return the anomalies that came since the last time."""
        new, self.new = self.new, []
        return new

    def note(
        self,
        kind: AnomalyKind,
        *,
        phase: str | None,
        name: str | None = None,
        value: float | None = None,
        detail: AnomalyDetail | None = None,
        step: int | None = None,
    ) -> None:
        """Note something that cannot be right, in the open step or an earlier one."""
        step = self._step if step is None else step
        anomaly = Anomaly(step=step, kind=kind, phase=phase, name=name, value=value, detail=detail or NoDetail())
        self.new.append(anomaly)
        if kind == "loss":
            self._step_with_bad_loss = step
        if len(self.anomalies) < _MAX_KEPT:
            self.anomalies.append(anomaly)
        if len(self.anomalies) <= _MAX_WRITTEN:
            self._writer.write(anomaly)

    def see_loss(self, loss: Tensor) -> None:
        """Keep the loss that a backward starts from, without its scale."""
        self.suspect = None
        if not loss.is_cpu:
            self.reads_late = True
            self.losses.append(LateNumber(loss))
            return
        value = loss.item()
        self.losses.append(value)
        if not math.isfinite(value):
            self.note("loss", phase="forward", value=value)

    def see_scalar(self, x: Any) -> None:
        """Look at a number that the loop reads for itself: it may be a loss that it will not go backward from."""
        if isinstance(x, Tensor) and x.grad_fn is not None and x.numel() == 1 and x.device.type == "cpu":
            value = float(x.detach())
            is_known = self._step_with_bad_loss == self._step
            self.suspect = None if math.isfinite(value) or is_known else value

    def drop_suspect(self) -> bool:
        """Note the bad loss that the loop read and did not go backward from; return whether there was one."""
        value, self.suspect = self.suspect, None
        if value is None:
            return False
        self.note("loss", phase="forward", value=value)
        return True

    def see_eval_loss(self, output: Any) -> None:
        """Keep the loss that an evaluation computed, if that is what a call gave."""
        loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            self.reads_late |= not loss.is_cpu
            self.eval_losses.append(loss.detach().reshape(()) if loss.is_cpu else LateNumber(loss))

    def see_gradients(self, optimizer: Optimizer, *, fully: bool, always: bool) -> None:
        """Look at the gradients that an optimizer is about to use, as far as the budget allows."""
        takes_table = fully or self._has_room_for_table()
        takes_norms = fully or always or self._has_room_for_norms()
        self.next_look = min(self._next_table, self._next_norms)
        if not takes_table and not takes_norms:
            return
        parameters, scaled = parameters_of(optimizer), as_scaled(optimizer)
        if takes_table:
            began = time.perf_counter()
            self.measures.begin(parameters)
            self._budget.spend(time.perf_counter() - began, "table")
        if takes_norms:
            began = time.perf_counter()
            scale = 1.0 if scaled is None else scaled.gradient_scale
            may_be_bad = scaled is not None and scaled.may_skip
            step = self._step

            def see_norm(found: tuple[float, int | None]) -> None:
                norm, bad = found
                self.grad_norm = norm / scale
                if bad is not None and not may_be_bad:
                    name = self._sites.of_parameter(parameters[bad])[1]
                    self.note("gradient", phase="backward", name=name, step=step)

            self._copies.read(gradient_norm(_holders_of_gradients(optimizer, parameters)), see_norm)
            self._budget.spend(time.perf_counter() - began, "norms")

    def _has_room_for_table(self) -> bool:
        """Return whether the budget allows the table of parameters; only some steps may have one."""
        if self._step < self._next_table or not is_kept(self._step, dense=_DENSE_STEPS):
            return False
        has_room = self._budget.has_room("table", part=_TABLE_PART)
        after = self._step + (1 if has_room else _STEPS_WITHOUT_ROOM)
        self._next_table = next_kept(after, dense=_DENSE_STEPS)
        return has_room

    def _has_room_for_norms(self) -> bool:
        """Return whether the budget allows norms of gradients; if not, it is not checked again for some steps."""
        if self._step < self._next_norms:
            return False
        has_room = self._budget.has_room("norms", part=_NORMS_PART)
        self._next_norms = self._step + (1 if has_room else _STEPS_WITHOUT_ROOM)
        return has_room

    def see_update(self) -> None:
        """Measure the weights that the optimizer has updated."""
        if not self.measures.has_begun:
            return
        began, step = time.perf_counter(), self._step

        def see_table(found: tuple[ParameterColumns | None, float | None]) -> None:
            columns, self.update_norm = found
            if columns is not None:
                self._writer.write_parameters(columns)
                is_bad = not all(map(math.isfinite, columns.l2))
                if is_bad or not math.isfinite(self.update_norm or 0.0):
                    self.note("weight", phase="optimizer", step=step)

        self._copies.read(self.measures.end(step), see_table)
        self._budget.spend(time.perf_counter() - began, "table")

    @property
    def has_measured(self) -> bool:
        """Whether something was measured on an accelerator that was not read yet, besides losses."""
        return self._copies.are_waiting

    def read_measured(self) -> None:
        """Read what was measured on accelerators; the one wait of a step."""
        began = time.perf_counter()
        self._copies.deliver()
        self._budget.spend(time.perf_counter() - began, "norms")

    def drop_update(self) -> None:
        """Forget the weights before an update that did not happen."""
        self.measures.drop()

    def see_buffers(self, buffers: Sequence[tuple[str, Tensor]], *, step: int | None = None) -> None:
        """Note the first buffer that has become infinite or NaN; one transfer from the device.

        One that never was finite is left out unless a norm owns it: observers of quantization begin with infinities.

        Args:
            buffers: by name.
            step: the step that left them so, if it is not the open one.
        """
        watched = [(name, x) for name, x in buffers if name not in self._bad_buffers]
        names = [name for name, _ in watched]
        step = self._step if step is None else step

        def see_bad(places: list[int]) -> None:
            if not places:
                if len(names) > len(self._good_buffers):
                    self._good_buffers.update(names)
                return
            bad = [names[place] for place in places if names[place] not in self._bad_buffers]
            self._bad_buffers.update(bad)
            spoiled = [name for name in bad if name in self._good_buffers or name.endswith(_STATISTICS)]
            if spoiled:
                self.note("buffer", phase="forward", name=spoiled[0], step=step)

        self._copies.read(nonfinite_tensors([x for _, x in watched]), see_bad)

    def end_attempt(self, *, waits: bool = True) -> None:
        """See whether the loss has jumped, now that the step is over; `waits` for one that is still under way."""
        if not self.reads_late:
            self._see_mean(self._step, self.losses)
            return
        if len(self.losses) > self._num_late:
            self._num_late = len(self.losses)
            self._late.append((self._step, self.losses))
        self.read_late(waits=waits or len(self._late) > _MAX_LATE_STEPS)

    def read_late(self, *, waits: bool) -> bool:
        """Look at the losses that have arrived, or wait for all; return whether one was bad, or has jumped."""
        num_before = len(self.new)
        while self._late and (waits or all(map(is_there, self._late[0][1]))):
            step, losses = self._late.popleft()
            for loss in losses:
                if isinstance(loss, LateNumber) and not math.isfinite(value := float(loss)):
                    self.note("loss", phase="forward", value=value, step=step)
            self._see_mean(step, losses)
        return len(self.new) > num_before

    def _see_mean(self, step: int, losses: Sequence[float | LateNumber]) -> None:
        value = mean(losses)
        if value is None:
            return
        spike = self._spikes.see(value)
        self._last_losses.append(value)
        if len(self._first_losses) < _NUM_COMPARED:
            self._first_losses.append(value)
        if spike is not None:
            detail = SpikeDetail(median=spike.median, limit=spike.limit)
            self.note("spike", phase="forward", value=value, detail=detail, step=step)


def _holders_of_gradients(optimizer: Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters, those of the model in place of ones that an optimizer keeps for itself, until it steps."""
    scaled = as_scaled(optimizer)
    stand_ins = {} if scaled is None else {id(main): parameter for parameter, main in scaled.stand_ins}
    return [stand_ins.get(id(p), p) if p.grad is None else p for p in parameters]


# -- exceptions that end a training ------------------------------------------------------------------------------------


_MAX_FRAMES = 60
_MAX_CHARACTERS = 8000
_MAX_CAUSES = 5


def exception_detail(
    error: BaseException, *, site: str | None = None, when: Literal["before", "in", "after"] = "in"
) -> ExceptionDetail:
    """Describe an exception for the run.

    The end of a long message is kept rather than its middle: that of an exception in a worker ends with what it was.
    """
    message = str(error)
    if len(message) > _MAX_CHARACTERS:
        half = _MAX_CHARACTERS // 2
        message = f"{message[:half]}\n...\n{message[-half:]}"
    frames = list(traceback.walk_tb(error.__traceback__))[::-1][:_MAX_FRAMES]
    lines = [f'  File "{frame.f_code.co_filename}", line {line} in {frame.f_code.co_name}' for frame, line in frames]
    if isinstance(error, SyntaxError) and error.lineno and not (error.filename or "<").startswith("<"):
        lines.insert(0, f'  File "{error.filename}", line {error.lineno} in <module>')  # no frame of it has run
    return ExceptionDetail(message=message, traceback=tuple(lines), causes=tuple(_causes(error)), site=site, when=when)


def _causes(error: BaseException) -> list[str]:
    """Return the exceptions that led to this one, the nearest first."""
    found: list[str] = []
    while len(found) < _MAX_CAUSES and (cause := error.__cause__ or error.__context__) is not None:
        found.append(f"{type(cause).__name__}: {cause}"[:_MAX_CHARACTERS])
        error = cause
    return found


def raising_module(error: BaseException) -> nn.Module | None:
    """Return the innermost module whose code the exception came through; None if it came through none."""
    for frame, _ in list(traceback.walk_tb(error.__traceback__))[::-1]:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            return owner
    return None
