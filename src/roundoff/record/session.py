"""A running recording: follows the loop, turns the recorder on and off, and writes each step when it closes."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from roundoff.kernels import row as columns
from roundoff.kernels.host_copies import fetch_numbers
from roundoff.record.event_selection import EventFilter, RecordingSettings
from roundoff.record.loop.calls import LoopCall, learning_rates, read_detail
from roundoff.record.loop.follower import BackwardCall, LoopFollower, ModuleCall, StepAttempt
from roundoff.record.loop.observer import observing_loop
from roundoff.record.loop.sites import Sites
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.ops.recorder import GRADIENT, NamedTensors, OpRecorder
from roundoff.record.ops.rows import RowKey, StepRows
from roundoff.record.ops.site_tracking import ModeSwitch
from roundoff.record.process_info import note_environment
from roundoff.record.reference import OpJudge, Reference
from roundoff.record.source_lines import Sources
from roundoff.record.structure import StructureWriter
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.runs import (
    Call,
    CallDetail,
    CallKind,
    Failure,
    HashColumns,
    Interned,
    Metrics,
    RunWriter,
    StepDetail,
    TensorPlacement,
    TensorWriter,
)
from roundoff.torch_private import (
    compiler_is_loaded,
    correct_mode_flags,
    hidden_from_modes,
    is_transformed,
    mesh_placement,
    simulated_ranks,
)
from roundoff.words import plural


class StepWriter:
    """Writes one recorded step after another; whole tensors are written when they are read, the rest when it closes."""

    def __init__(self, writer: RunWriter, *, sites: Sites, sources: Sources | None) -> None:
        self.num_events = 0
        self.left_out: Counter[str] = Counter()
        """How many tensors could not be written because no file format holds their dtype, by dtype."""
        self._writer = writer
        self._sites = sites
        self._sources = sources
        self._tensors: TensorWriter | None = None

    def write_tensor(self, step: int, recorder: OpRecorder, rows: StepRows, x: Tensor, place: int) -> None:
        """Append a tensor, with the key of the row at `place`, to the step's file."""
        dtype = file_dtype(x)
        if dtype is None:
            self.left_out[str(x.dtype).removeprefix("torch.")] += 1
            return
        if self._tensors is None:
            self._tensors = self._writer.tensors(step)
        key = rows.keys()[place]
        name = (
            f"{PHASES[key.phase]}/{key.microbatch}/{self._sites.names[key.site]}/"
            f"{recorder.ops.values[key.op]}#{key.nth}:{recorder.outputs.values[key.output]}"
        )
        content = rows.content_hash(place)
        self._tensors.add(name, bytes_of(x), dtype=dtype, shape=tuple(x.shape), content_hash=content)

    def write_step(self, step: int, recorder: OpRecorder, rows: StepRows) -> None:
        """Write the rows of a step that closed, its hashes, and complete its file of tensors."""
        if self._tensors is not None:
            self._tensors.close()
            self._tensors = None
        if len(rows):
            lines: Sequence[str] = self._sources.lines if self._sources else ()
            self._writer.write_events(
                rows.to_columns(
                    step,
                    sites=self._sites.names,
                    ops=recorder.ops.values,
                    outputs=recorder.outputs.values,
                    parameters=recorder.parameters.values,
                    sources=lines,
                )
            )
            self._write_hashes(step, recorder, rows)
        self._writer.flush()
        if self._writer.stopped is None:
            self.num_events += len(rows)

    def discard(self) -> None:
        """Remove a half-written file of tensors."""
        if self._tensors is not None:
            self._tensors.discard()
            self._tensors = None

    def _write_hashes(self, step: int, recorder: OpRecorder, rows: StepRows) -> None:
        """Repeat the hashes of inputs, parameters and gradients in the table that ranks and resumed runs compare."""
        places = [place for place, key in enumerate(rows.keys()) if key.op <= GRADIENT]
        if not places:
            return
        keys = [rows.keys()[place] for place in places]
        names = [
            recorder.parameters.values[key.parameter] if key.parameter >= 0 else self._name_without_parameter(key)
            for key in keys
        ]
        self._writer.write_hashes(
            HashColumns(
                step=np.full(len(places), step, dtype=np.int32),
                microbatch=np.array([key.microbatch for key in keys], dtype=np.int16),
                kind=Interned.of([recorder.ops.values[key.op] for key in keys]),
                name=Interned.of(names),
                hash=np.ascontiguousarray(rows.numbers()[places, columns.HASH]).view(np.uint64),
            )
        )

    def _name_without_parameter(self, key: RowKey) -> str:
        call = f"#{key.nth}" if key.nth else ""
        return f"{self._sites.names[key.site]}{call}[{key.output}]"


def grad_norm(rows: StepRows) -> float | None:
    """Return the norm of all gradients among the rows together, or None where there are none."""
    places = [place for place, key in enumerate(rows.keys()) if key.op == GRADIENT]
    return math.sqrt(rows.numbers()[places, columns.SUM_SQUARES].sum()) if places else None


class Recording(LoopFollower):
    """Turns the recorder on in the selected steps, and writes each step when it closes.

    Args:
        writer: of the run folder.
        settings: what to record.
        sites: names for modules and parameters.
        judge: looks at each op, in place of the reference that the settings name.
        sources: names source lines, in place of those that the settings request.
        first_step: the number of the first step.
        structure: describes what the training is made of; None if another does.
    """

    def __init__(
        self,
        writer: RunWriter,
        settings: RecordingSettings,
        *,
        sites: Sites,
        judge: OpJudge | None = None,
        sources: Sources | None = None,
        first_step: int = 0,
        structure: StructureWriter | None = None,
    ) -> None:
        super().__init__(sites=sites, first_step=first_step)
        self.choose_folder: Callable[[], Path] | None = None
        """Returns the run's own folder, if the run waits elsewhere until training begins or the script ends."""
        self.complaints: list[str] = []
        """What was requested and never happened; known when the block has ended."""
        self.training_failed = False
        """Set this if the training fails without an exception that leaves the block."""
        self._writer = writer
        self._structure = structure
        self._settings = settings
        self._selection = settings.selection
        self._judge = judge or (Reference(settings.reference) if settings.reference else None)
        self._filter = None if self._selection.takes_everything else EventFilter(self._selection)
        sources = sources or (Sources() if settings.stacks else None)
        self._recorder = OpRecorder(
            self,
            settings,
            wanted=self._filter,
            judge=self._judge,
            sources=sources,
            on_row=self._write_tensor if settings.level == "tensors" else None,
        )
        self._named = NamedTensors(self._recorder, self)
        self._steps = StepWriter(writer, sites=sites, sources=sources)
        self._mode = ModeSwitch(self._recorder)
        self._stopped = False
        self._recorded: set[int] = set()
        self._compiled_steps: set[int] = set()
        self._losses: list[Tensor] = []
        self._placed: set[str] = set()
        self._simulated: dict[int, tuple[RunWriter, StepWriter]] = {}
        if settings.level == "tensors":
            self._recorder.on_simulated_row = self._write_simulated_tensor
        self._began = self._step_began = time.perf_counter()

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._writer.folder

    def _move_to_own_folder(self) -> None:
        """Move the run to its own folder, now that the script has made the folders that it makes itself."""
        choose, self.choose_folder = self.choose_folder, None
        if choose is not None:
            self._writer.move_to_chosen(choose)

    @property
    def num_recorded(self) -> int:
        """How many steps have been recorded so far."""
        return len(self._recorded)

    @property
    def first_recorded(self) -> int:
        """The first step that has been recorded."""
        return min(self._recorded)

    @property
    def num_rows(self) -> int:
        """How many events of the open step there are so far: the place of the next one."""
        return len(self._recorder.rows)

    @property
    def num_events(self) -> int:
        """How many events have been written so far."""
        return self._steps.num_events

    def say(self, text: str) -> None:
        """Print one line to stderr."""
        self._writer.say(text)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; at its end, write what is left and note what never happened."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                self._switch(on=self._selection.wants_step(self.clock.step))
                yield
            if not self.training_failed:
                status = "finished"
        finally:
            self._finish(status)

    def failed(self, error: Exception) -> None:
        """Stop recording, and say so in one line; the training goes on, unless the recording is strict."""
        if self._stopped:
            return
        self._stop()
        if self._settings.strict:
            raise error
        reason = f"{type(error).__name__}: {error}"
        self._writer.note(f"Recording stopped at step {self.clock.step}: {reason}")
        if self._writer.stopped is not None:
            return  # the writer has printed why
        self._writer.say(
            f"stopped recording to '{self.folder}' at step {self.clock.step}; the training goes on. Why: {reason}"
        )

    # -- hooks of LoopFollower -----------------------------------------------------------------------------------------

    def module_called(self, call: ModuleCall, args: tuple[Any, ...]) -> None:
        """Record the inputs with which the loop calls a model."""
        if not call.is_by_loop:
            return
        if self.clock.hears_functions:  # this is not a loop of plain functions, so they need not be watched
            self._switch(on=self._mode.is_on)
        if self._mode.is_on:
            self._named.take_inputs(call.site, (args, call.keyword_arguments()))

    def backward_began(self, backward: BackwardCall) -> None:
        """Keep the loss, without its scale."""
        if backward.is_nested:
            return
        self._mode.place()
        if backward.loss is not None and not is_transformed(backward.roots[0]):
            with hidden_from_modes():
                ranks = simulated_ranks(backward.loss)
                self._losses.append((backward.loss if ranks is None else ranks[min(ranks)]).detach().clone())
        self._write_call("backward", backward.detail())

    def backward_ended(self, *, is_microbatch: bool) -> None:
        """Count ops from 0 again, for the next microbatch."""
        if not is_microbatch:
            return
        if self._mode.is_on:
            with hidden_from_modes():
                self._recorder.take_pending()
            self._recorder.learn_gradients(self.sites.parameters())
        self._recorder.new_microbatch()
        self._await_forward()

    def optimizer_began(self, attempt: StepAttempt) -> None:
        """Record the gradients as the optimizer sees them."""
        self._mode.place()
        optimizer = attempt.optimizer
        self._describe(lambda structure: structure.stepping(optimizer))
        if self._mode.is_on:
            self._named.take_gradients(optimizer)
            self._write_placements("gradient")
            self._recorder.begin_optimizer(optimizer)
        rates = tuple(learning_rates(optimizer))
        self._write_call("step", StepDetail(optimizer=type(optimizer).__name__, lr=rates))

    def optimizer_ended(self, attempt: StepAttempt) -> None:
        """Forget which tensors belong to which parameter."""
        self._recorder.end_optimizer()
        self._await_forward()

    def optimizer_skipped(self, optimizer: Optimizer) -> None:
        """Record the gradients because of which a scaler skipped the optimizer's step."""
        if self._mode.is_on:
            self._named.take_gradients(optimizer)
        self._await_forward()
        self._write_call("step", StepDetail(optimizer=type(optimizer).__name__, skipped=True))

    def loop_called(self, call: LoopCall) -> None:
        """Write the calls of the loop besides forward, backward and step."""
        self._mode.place()
        if call.kind == "zero_grad":
            self._recorder.end_optimizer()
        if call.is_written:
            with hidden_from_modes():
                kind = cast(CallKind, call.kind)
                self._write_call(kind, read_detail(kind, cast(CallDetail, call.detail)))

    def step_opened(self, module: object) -> None:
        """Record the values that the step starts from."""
        self._move_to_own_folder()
        if not self._mode.is_on:
            return
        if not self._writer.info.environment:
            note_environment(self._writer)
        self.sites.refresh()
        self._named.take_parameters()
        self._write_placements("parameter")

    def _describe(self, look: Callable[[StructureWriter], None]) -> None:
        """Describe the training; if that fails because of us, the recording goes on without a description."""
        if self._structure is None:
            return
        try:
            with hidden_from_modes():
                look(self._structure)
        except Exception as error:
            self._structure = None
            self._writer.write(Failure.of(error, check="fact", name="structure", step=self.clock.step))

    def step_closed(self, step: int) -> None:
        """Write the step, and turn the recorder on or off for the next one."""
        if self._stopped:
            return
        with hidden_from_modes():
            norm = self._write_step() if self._mode.is_on else None
            self._write_metrics(norm)
        leaves = [leaf for kept in self.leaves or () if (leaf := kept()) is not None]
        self._describe(lambda structure: structure.step_ended(step, leaves))
        self._named.new_step()
        self._losses.clear()
        self._step_began = time.perf_counter()
        if self._writer.stopped is not None:
            self._stop()
        else:
            self._switch(on=self._can_record(step + 1))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _await_forward(self) -> None:
        """Prepare for a forward that may begin a step to record: compiled code would show no ops."""
        self._recorder.await_forward()
        if compiler_is_loaded() and not self._mode.is_on and self.clock.ends_at_forward:
            self._mode.await_step(is_wanted=self._selection.wants_step(self.clock.step + 1))

    def _write_step(self) -> float | None:
        self._named.take_gradients(None)
        rows = self._recorder.new_step()
        self._steps.write_step(self.clock.step, self._recorder, rows)
        simulated, self._recorder.simulated = self._recorder.simulated, {}
        for rank, of_rank in simulated.items():
            self._steps_of(rank).write_step(self.clock.step, self._recorder, of_rank)
        if self._writer.stopped is None:
            self._recorded.add(self.clock.step)
        return grad_norm(rows)

    def _write_metrics(self, norm: float | None) -> None:
        clock = self.clock
        rates = learning_rates(self.last_optimizer) if clock.num_attempts else []
        scale = self.loss_scale.value
        numbers = fetch_numbers([*self._losses, *(() if scale is None else (scale,))])
        losses = numbers[: len(self._losses)]
        self._writer.write(
            Metrics(
                step=clock.step,
                loss=math.fsum(losses) / len(losses) if losses else None,
                lr=rates[0] if rates else None,
                loss_scale=None if scale is None else numbers[-1],
                skipped=clock.skipped,
                grad_norm=norm,
                seconds=time.perf_counter() - self._step_began,
                optimizer=clock.optimizer,
            )
        )

    def _write_call(self, call: CallKind, detail: CallDetail) -> None:
        clock, seconds = self.clock, time.perf_counter() - self._began
        self._writer.write(
            Call(step=clock.step, call=call, microbatch=clock.microbatch, seconds=seconds, detail=detail)
        )

    def _write_placements(self, kind: Literal["parameter", "gradient"]) -> None:
        """Note how sharded parameters, or their gradients, lie on meshes of ranks, once."""
        if kind in self._placed:
            return
        self._placed.add(kind)
        for parameter in self.sites.parameters():
            x = parameter if kind == "parameter" else parameter.grad
            found = None if x is None else mesh_placement(x)
            name = self.sites.of_parameter(parameter)[1]
            if x is None or found is None or name is None:
                continue
            mesh, coordinate, placements = found
            self._writer.write(
                TensorPlacement(
                    step=self.clock.step,
                    kind=kind,
                    name=name,
                    shape=tuple(x.shape),
                    mesh=mesh,
                    coordinate=coordinate,
                    placements=placements,
                )
            )

    def _write_tensor(self, x: Tensor, place: int) -> None:
        self._move_to_own_folder()  # a file that is being written cannot be moved
        self._steps.write_tensor(self.clock.step, self._recorder, self._recorder.rows, x, place)

    def _write_simulated_tensor(self, rank: int, x: Tensor, place: int) -> None:
        rows = self._recorder.simulated[rank]
        self._steps_of(rank).write_tensor(self.clock.step, self._recorder, rows, x, place)

    def _steps_of(self, rank: int) -> StepWriter:
        """Return what writes the steps of another rank that torch simulates in this process."""
        if rank not in self._simulated:
            self._move_to_own_folder()
            if self._writer.info.ranks <= rank:
                self._writer.update_info(replace(self._writer.info, ranks=rank + 1))
            writer = RunWriter.create(self._writer.folder, self._writer.info, rank=rank)
            self._simulated[rank] = (writer, StepWriter(writer, sites=self.sites, sources=None))
        return self._simulated[rank][1]

    def _switch(self, *, on: bool) -> None:
        """Turn the recorder on or off.

        In a loop that calls no module it stays on between recorded steps, to notice when a forward begins.
        """
        clock = self.clock
        can_hear = not clock.sees_modules and not self._stopped
        clock.hears_functions = can_hear and (on or self._selection.has_steps_after(clock.step))
        self._mode.turn(on=on, listening=clock.hears_functions)

    def _can_record(self, step: int) -> bool:
        """Return whether a step is wanted; a step that has begun in compiled code cannot be recorded."""
        if not self._selection.wants_step(step):
            return False
        if self._mode.can_record:
            return True
        self._compiled_steps.add(step)
        return False

    # -- the end -------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._stopped = True
        self._switch(on=False)
        self._steps.discard()

    def _finish(self, status: Literal["finished", "failed"]) -> None:
        self._move_to_own_folder()
        try:
            if self.clock.has_begun or (self._mode.is_on and (self.is_open or len(self._recorder.rows))):
                self.close_step()
            if status == "finished":
                self.complaints = self._find_complaints()
        except Exception as error:
            self.failed(error)
        finally:
            self.clock.sees_modules = True
            self._switch(on=False)
            correct_mode_flags()  # a mode that the script entered has restored the flags it found, ours among them
            self._steps.discard()
            for writer, steps in self._simulated.values():
                steps.discard()
                writer.close(status=status)
            for complaint in self.complaints:
                self._writer.note(complaint)
            self._writer.close(status=status)

    def _find_complaints(self) -> list[str]:
        if self._stopped:
            return []
        found: list[str] = []
        if self._compiled_steps:
            found.append(f"step {min(self._compiled_steps)} began inside compiled code, where it cannot be recorded.")
        missing = self._selection.first_missing(self._recorded | self._compiled_steps, 2)
        if self.num_steps == 0:
            elsewhere = (
                " It ran in another thread, which a recording does not follow." if self.has_other_threads else ""
            )
            found.append(f"no training step was seen, so nothing was recorded.{elsewhere}")
        elif missing:
            which = f"step {missing[0]} was" if len(missing) == 1 else f"steps from {missing[0]} on were"
            taken = plural(self.num_steps, "step")
            found.append(f"{which} never reached: the loop took {taken}.")
        if self._filter is not None and self._recorded:
            found.extend(f"{complaint}." for complaint in self._filter.complaints())
        if unreadable := self._recorder.num_unreadable:
            tensors = plural(unreadable, "tensor")
            found.append(f"{tensors} could not be read (meta, fake, nested, or of a foreign subclass).")
        if left_out := self._steps.left_out:
            tensors = "1 tensor is" if left_out.total() == 1 else f"{left_out.total()} tensors are"
            found.append(
                f"{tensors} not in the files of whole tensors, which cannot hold {', '.join(sorted(left_out))}."
            )
        if self._judge is not None:
            found.extend(f"{op} has no reference: {why}" for op, why in sorted(self._judge.not_judged.items()))
        return found
