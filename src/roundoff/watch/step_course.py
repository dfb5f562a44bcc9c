"""The course of a step: what is done once when it begins, when the optimizer has stepped, and when it closes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from roundoff.record.loop.step_clock import PHASES
from roundoff.record.torch_private import compiler_is_loaded, hidden_from_modes
from roundoff.replay.rank_consensus import ReplayRequests, num_ranks
from roundoff.watch.handling import StepHandler
from roundoff.watch.instruments import Instruments
from roundoff.watch.process.memory_growth import MemoryFollower
from roundoff.watch.respond import Responder

_INTERVAL_OF_RANKS = 8
"""Steps between the snapshots of several ranks: they must be those of the same steps."""


class StepCourse:
    """Takes the open step from its beginning to its end: snapshot, attempt, replay if it calls for one, metrics."""

    def __init__(self, on: Instruments) -> None:
        self.num_steps = 0
        """How many steps have closed."""
        self.last_optimizer: Optimizer | None = None
        """The one that stepped last, or was not let through."""
        self.is_replaying = False
        """Whether a step is being played again: what the loop seems to do then is our own doing."""
        self.has_stopped = False
        """To be set when watching has failed: steps are counted from then on, and nothing else."""
        self.responder = Responder(on.writer, training=on.training, sites=on.sites, snapshots=on.snapshots)
        self.handler = StepHandler(
            self.responder,
            on.settings,
            snapshots=on.snapshots,
            requests=ReplayRequests(on.writer.folder),
            replaying=self.replaying,
        )
        self._on = on
        self._memory: MemoryFollower | None = None
        self._has_begun = False
        self._is_handled = False

    @property
    def is_open(self) -> bool:
        """Whether a step has begun that has not closed."""
        return self._has_begun or self._on.clock.has_begun

    def begin(self, module: nn.Module | None = None) -> None:
        """Do what is to be done once a step, before anything of it has been computed; new models may join later."""
        if module is not None:
            self._meet(module)
        if self._has_begun:
            if self._on.lookout.drop_suspect():
                self._handle(is_complete=False)
                self._is_handled = False
            return
        self._has_begun = True
        is_first = not self._on.clock.step
        if is_first:
            self._on.training.find_optimizers()
        self._on.tape.begin()
        if is_first:
            self._begin_training()
        if self._on.is_fully_watched or self._on.snapshots.is_due(self._on.clock.step):
            self._take_snapshot()

    def begin_with_function(self) -> None:
        """Begin the forward of a loop that calls no module: it builds a graph again after a step."""
        self._on.clock.forward(with_gradients=True)
        self.begin()

    def _meet(self, module: nn.Module) -> None:
        """Take in a model that the loop calls; what led to the present without it may not lead there any more."""
        snapshots, training = self._on.snapshots, self._on.training
        if training.add_model(module) and self._has_begun:
            if snapshots.latest is not None and snapshots.latest.step == self._on.clock.step:
                snapshots.latest.state.join(training, training.tensors())
            else:
                snapshots.forget()
        if self._has_begun and self._was_still_made() and self._on.tape.begin_again():
            snapshots.forget()
            self._has_begun = False

    def _was_still_made(self) -> bool:
        """Say whether what was called so far may have been a part of a model, or a model that was only tried."""
        clock = self._on.clock
        return not clock.step and not clock.has_begun and not clock.in_step

    def _begin_training(self) -> None:
        self._memory = MemoryFollower(
            self._on.writer,
            model_bytes=self._on.training.num_bytes,
            own_bytes=lambda: self._on.snapshots.num_bytes,
        )
        self.handler.begin()
        self._on.facts.begin()

    def _take_snapshot(self) -> None:
        snapshots = self._on.snapshots
        began = time.perf_counter()
        snapshots.take(self._on.clock.step)
        self._on.lookout.see_buffers(self._on.training.buffers())
        seconds = time.perf_counter() - began
        if num_ranks() == 1:
            snapshots.learn_cost(seconds, self._on.budget.training_seconds / max(self.num_steps, 1))
        else:
            snapshots.interval = _INTERVAL_OF_RANKS

    def take_gradients_of_start(self) -> None:
        """Keep the gradients that this step adds to, unless they were cleared since it began."""
        latest, clock = self._on.snapshots.latest, self._on.clock
        if latest is None or latest.step != clock.step or clock.microbatch:
            return
        if not any(call.call == "zero_grad" for call in self._on.journal.open_calls):
            latest.state.take_gradients()

    def end_attempt(self) -> None:
        """The optimizer has stepped, or a scaler has skipped it: record or investigate while everything is at hand."""
        self._on.tape.is_between = True
        self._handle(is_complete=True)

    def _handle(self, *, is_complete: bool) -> None:
        if self._is_handled or self.has_stopped:
            return
        self._is_handled = True
        on = self._on
        on.lookout.end_attempt()
        reached = [leaf for kept in on.leaves or () if (leaf := kept()) is not None]
        on.facts.end_attempt(on.tape.so_far(), reached=reached, fully=on.is_fully_watched)
        began, num_undone = time.perf_counter(), self.handler.num_undone
        on.journal.draw(on.sites)
        if on.lookout.has_new:
            on.journal.flush()
        self.handler.handle(on.tape.so_far(), on.lookout.take_new(), is_complete=is_complete)
        if self.handler.num_undone > num_undone:
            on.journal.call("undone", {})
        on.budget.exempt(time.perf_counter() - began)

    @contextlib.contextmanager
    def replaying(self) -> Iterator[None]:
        """Let steps be played again inside the block without being taken for the training's own."""
        on = self._on
        self.is_replaying = True
        on.tape.hold()
        on.flight.note(step=on.clock.step, phase="replay")
        try:
            with _eagerly():
                yield
        finally:
            self.is_replaying = False
            on.tape.release()
            on.flight.note(step=on.clock.step, phase=PHASES[on.clock.phase])

    def close(self) -> None:
        """Write what the step came to, keep its tape, and be ready for the next."""
        began = time.perf_counter()
        on = self._on
        self.num_steps += 1
        on.budget.count_step()
        if self.has_stopped:
            return
        self._handle(is_complete=False)
        with hidden_from_modes():
            metrics = on.journal.close_step(
                losses=on.lookout.losses,
                eval_losses=on.lookout.eval_losses,
                optimizer=self.last_optimizer,
                scale=on.lookout.loss_scale.value,
                grad_norm=on.lookout.grad_norm,
                update_norm=on.lookout.update_norm,
            )
            on.snapshots.add(on.tape.new_step(on.clock.step + 1))
        on.lookout.new_step(on.clock.step + 1)
        self._has_begun = self._is_handled = False
        if self._memory is not None:
            self._memory.step_closed(on.clock.step)
        on.flight.note(step=on.clock.step + 1, phase="forward")
        if self.num_steps == on.settings.full_steps:
            on.budget.start_anew()
        else:
            on.budget.spend(time.perf_counter() - began)
        on.journal.show(metrics)  # behind the budget: who asks for it wants all of it

    def end_training(self) -> None:
        """Write what is known of the memory as a whole."""
        if self._memory is not None:
            self._memory.close()


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Have compiled code run eagerly inside the block; the compiler is not loaded for nothing."""
    if compiler_is_loaded():
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        yield
