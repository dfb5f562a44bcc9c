"""One training under watch: follows the loop at almost no cost, and acts when something cannot be right."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES
from roundoff.replay.replayed_step import ReplayedStep
from roundoff.report.tensorboard import TensorBoard
from roundoff.runs import Anomaly, RecordingStoppedWarning, RunWriter
from roundoff.runs.flight import FlightRecorder
from roundoff.watch.backward_calls import BackwardCalls
from roundoff.watch.exceptions import exception_detail, raising_module
from roundoff.watch.instruments import Instruments
from roundoff.watch.loop_calls import LoopCalls
from roundoff.watch.model_calls import ModelCalls
from roundoff.watch.probes.last_step import LastStepProbes
from roundoff.watch.settings import WatchSettings
from roundoff.watch.step_calls import StepCalls
from roundoff.watch.step_course import StepCourse


class Watch:
    """Follows the loop of a training: its calls, losses, norms; keeps snapshots; replays steps that went wrong."""

    def __init__(
        self,
        writer: RunWriter,
        settings: WatchSettings,
        *,
        sites: Sites,
        flight: FlightRecorder,
        board: TensorBoard | None = None,
    ) -> None:
        self.folder = writer.folder
        self.training_failed = False
        """To be set where the training fails without an exception that leaves the block."""
        self.complaints: list[str] = []
        """What a user should know that is no finding; complete when the block has ended."""
        self._on = Instruments(
            writer,
            settings,
            sites=sites,
            flight=flight,
            board=board,
            on_close=lambda: self._course.close(),
            on_forward=lambda: self._course.begin_with_function(),
        )
        self._course = StepCourse(self._on)
        self._models = ModelCalls(self._on, self._course)
        self._backwards = BackwardCalls(self._on, self._course, self._models)
        self._loop_calls = LoopCalls(self._on, self._course)
        self._steps = StepCalls(self._on, self._course, self._models, self._loop_calls)
        self._began = time.perf_counter()

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._on.clock.step

    @property
    def num_steps(self) -> int:
        """How many steps have closed."""
        return self._course.num_steps

    @property
    def saw_training(self) -> bool:
        """Whether a model was called, something went backward or an optimizer stepped."""
        return self._models.saw_any or self._on.leaves is not None or self._steps.saw_any

    @property
    def num_undone(self) -> int:
        """How many steps were undone, with `on_anomaly="skip"`."""
        return self._course.handler.num_undone

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was seen so far that cannot be right."""
        return self._on.lookout.anomalies

    @property
    def cost(self) -> float:
        """What the watch has cost, as a share of the training's time."""
        return self._on.budget.cost

    @property
    def seconds(self) -> float:
        """How long the training has been watched."""
        return time.perf_counter() - self._began

    def verdict(self) -> str:
        """Diagnose what was seen, and return the screen that `roundoff run` prints; to be called after the block."""
        from roundoff.watch.verdict import verdict_of  # which needs this file

        return verdict_of(self)[1]

    def add_optimizer(self, optimizer: Optimizer) -> None:
        """Know an optimizer before it steps."""
        self._on.training.add_optimizer(optimizer)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block, and close the run at its end."""
        on = self._on
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                on.tape.release()
                try:
                    yield
                    status = "failed" if self.training_failed else "finished"
                finally:
                    self._finish()
        finally:
            on.tape.hold()
            on.tape.new_step(on.clock.step)
            on.snapshots.drop_references()
            on.facts.drop_references()
            self._course.last_optimizer = None
            on.writer.close(status=status)

    def note_exception(self, error: BaseException) -> None:
        """Take note that the training raised."""
        if isinstance(error, Exception) and not self._course.has_stopped:
            sites = self._on.sites
            module = raising_module(error)
            site = None if module is None else sites.names[sites.of_module(module, 0)]
            self._on.lookout.note(
                "exception",
                phase=PHASES[self._on.clock.phase],
                name=type(error).__name__,
                detail={**exception_detail(error), "site": site},
            )

    # -- LoopObserver: what the loop does, unless it is us who play a step again ---------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note where the loop is, also in a replay: it may crash there."""
        self._models.enter(module, args)

    def forward_leave(self, module: nn.Module, output: Any) -> None:
        """Note that the module has ended."""
        self._models.leave(module, output)

    def backward_enter(
        self, roots: tuple[Any, ...], *, is_part_of_forward: bool, arguments: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> None:
        """Keep the loss and look at it."""
        if not self._course.is_replaying:
            self._backwards.enter(roots, arguments, is_part_of_forward=is_part_of_forward)

    def backward_leave(self) -> None:
        """Count the microbatch."""
        if not self._course.is_replaying:
            self._backwards.leave()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Look at the gradients as the optimizer sees them."""
        if not self._course.is_replaying:
            self._steps.enter(optimizer)

    def closure_enter(self) -> None:
        """Note what the closure does as a part of the step."""
        if not self._course.is_replaying:
            self._steps.closure_enter()

    def closure_leave(self) -> None:
        """Go back to the optimizer."""
        if not self._course.is_replaying:
            self._steps.closure_leave()

    def step_leave(self, optimizer: Optimizer) -> None:
        """Look at what came of the step."""
        if not self._course.is_replaying:
            self._steps.leave(optimizer)

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if not self._course.is_replaying:
            self._steps.skipped(optimizer)

    def calling(self, call: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Put a call of the loop onto the tape."""
        if not self._course.is_replaying:
            self._loop_calls.begin(call, args, kwargs)

    def call_ended(self, call: str) -> None:
        """Look at the loop's own functions again."""
        if not self._course.is_replaying:
            self._loop_calls.end(call)

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what the loop did between forward, backward and step."""
        if call == "compile":
            self._course.responder.compiles = True
        if not self._course.is_replaying:
            self._loop_calls.made(call, owner, detail)

    def failed(self, error: Exception) -> None:
        """Stop watching with one warning; the training goes on."""
        if self._course.has_stopped:
            return
        self._course.has_stopped = True
        self._on.tape.hold()
        reason = f"{type(error).__name__}: {error}"
        self._on.writer.note(f"Watching stopped at step {self.step}: {reason}")
        warnings.warn(
            f"roundoff stopped watching at step {self.step}; the training goes on.\n  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    def other_thread(self) -> None:
        """Nothing: other threads are not watched."""

    # -- the end of the training ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        try:
            self._on.lookout.drop_suspect()
            if self._course.is_open:
                self._course.close()
            self._probe()
        except Exception as error:
            self.failed(error)
        self._course.end_training()
        self._on.journal.close()
        if not self.saw_training:
            self.complaints.append("no training step was seen: nothing was watched.")
        elif self._on.snapshots.note is not None:
            self.complaints.append(f"{self._on.snapshots.note}.")
        if self._course.handler.complaint is not None:
            self.complaints.append(self._course.handler.complaint)

    def _probe(self) -> None:
        """Run the probes on the last step, unless something went wrong or several ranks would have to join in."""
        on, settings = self._on, self._on.settings
        if self._course.has_stopped or self.anomalies or on.writer.info.ranks > 1 or settings.probe_seconds <= 0:
            return
        path = on.snapshots.path_to(self.num_steps - 1, among=[])
        if path is None:
            return
        began = time.perf_counter()
        with self._course.replaying():
            bench = ReplayedStep(on.training, *path, on.sites)
            probes = LastStepProbes(on.writer, seconds=settings.probe_seconds)
            probes.run(bench, is_suspicious=not on.lookout.loss_has_fallen)
        on.budget.exempt(time.perf_counter() - began)
