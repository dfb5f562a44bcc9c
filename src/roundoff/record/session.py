"""Recording: a block inside which every op of the chosen steps goes into a run folder."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.errors import RecordError
from roundoff.kernels import row as at
from roundoff.record.environment import describe_process, rank
from roundoff.record.loop import observing_loop
from roundoff.record.op_table import tensors_in
from roundoff.record.recorder import OpRecorder
from roundoff.record.reference import Reference, ReferenceKind
from roundoff.record.rows import Rows
from roundoff.record.selection import Filter, Selection, check_sites
from roundoff.record.sites import Sites
from roundoff.record.source import Sources
from roundoff.record.steps import PHASES, Phase, StepClock
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.record.torch_private import keyword_arguments, push_mode, remove_mode
from roundoff.runs import Call, HashColumns, Interned, JsonValue, Metrics, RecordingStoppedWarning, RunWriter
from roundoff.runs import TensorWriter as TensorFileWriter

Level = Literal["summary", "tensors"]
LEVELS: tuple[Level, ...] = ("summary", "tensors")


class IncompleteRecordingWarning(UserWarning):
    """The block ended and something it was asked for never came."""


@contextlib.contextmanager
def recording(
    model: nn.Module | Sequence[nn.Module] | None = None,
    *,
    to: str | Path,
    steps: Collection[int] | int | None = None,
    sites: Sequence[str] | str | None = None,
    ops: Sequence[str] | str | None = None,
    phases: Sequence[str] | str | None = None,
    level: Level = "summary",
    inputs: bool = False,
    reference: ReferenceKind | None = None,
    stacks: bool = False,
    enabled: bool = True,
    strict: bool = False,
    command: tuple[str, ...] | None = None,
    seed: int | None = None,
    settings: dict[str, JsonValue] | None = None,
) -> Iterator[Recording | None]:
    """Record every op of forward, backward and optimizer inside the block into the run folder `to`.

    Losses, gradients and weights are bit for bit what they are without it. Compiled models run eagerly in the recorded
    steps, which agrees with the compiled ones within their format. Hooks are gone when the block ends, also by an
    exception; if recording itself fails, it stops with one warning and the training goes on.

    Args:
        model: names sites and parameters from the start; without it models are met as they are called.
        to: the run folder to make; one that holds a run already is an error.
        steps: numbers of the steps to record, `range(3)`; None for all.
        sites: shell patterns of sites, `"blocks.*"`.
        ops: shell patterns of ops, `"aten.*mm"`, `"softmax"`.
        phases: of forward, backward, optimizer, eval.
        level: "summary" for numbers, "tensors" for the whole tensors as well.
        inputs: record what goes into each op, too.
        reference: "fp64" or "cpu": run each op again on its own inputs and keep the error it introduced.
        stacks: keep the source line of each op.
        enabled: False makes the block do nothing at all.
        strict: a failure of the recording raises instead of warning.
        command: what run.json gives as the command; the process's own by default.
        seed: what run.json gives as the seed; torch's initial seed by default.
        settings: further facts for run.json.
    """
    if not enabled:
        yield None
        return
    session = start_recording(
        model, to=to, steps=steps, sites=sites, ops=ops, phases=phases, level=level, inputs=inputs,
        reference=reference, stacks=stacks, strict=strict, command=command, seed=seed, settings=settings,
    )  # fmt: skip
    with session.running():
        yield session
    if session.complaints:
        text = "\n  ".join(session.complaints)
        warnings.warn(
            f"roundoff recorded {session.num_recorded} steps to '{session.folder}', but\n  {text}",
            IncompleteRecordingWarning,
            stacklevel=3,
        )


def start_recording(
    model: nn.Module | Sequence[nn.Module] | None,
    *,
    to: str | Path | Callable[[], Path],
    steps: Collection[int] | int | None,
    sites: Sequence[str] | str | None,
    ops: Sequence[str] | str | None,
    phases: Sequence[str] | str | None,
    level: Level,
    inputs: bool,
    reference: ReferenceKind | None,
    stacks: bool,
    strict: bool,
    command: tuple[str, ...] | None,
    seed: int | None,
    settings: dict[str, JsonValue] | None,
) -> Recording:
    """Check what was asked for, make the run folder, and return the recording, not yet running; see `recording`.

    `to` may be a function that chooses the folder; it is called when everything else has been checked.
    """
    if level not in LEVELS:
        raise RecordError.explain(
            f"There is no level '{level}'.", why=f"the levels are {', '.join(LEVELS)}.", fix="use one of them."
        )
    if reference not in (None, "fp64", "cpu"):
        raise RecordError.explain(
            f"There is no reference '{reference}'.", why="the references are fp64 and cpu.", fix="use one of them."
        )
    selection = Selection.of(steps=steps, sites=sites, ops=ops, phases=phases)
    named = Sites()
    for given in [model] if isinstance(model, nn.Module) else model or ():
        named.add_model(given)
    if named.models and selection.sites:
        check_sites(selection.sites, named.names)
    asked: dict[str, JsonValue] = {"level": level, "inputs": inputs, "reference": reference, "stacks": stacks}
    info = describe_process(seed=seed, settings={**asked, **(settings or {})}, command=command)
    return Recording(
        writer=RunWriter.create(to() if callable(to) else to, info, rank=rank(), strict=strict),
        selection=selection,
        sites=named,
        level=level,
        inputs=inputs,
        reference=Reference(reference) if reference else None,
        sources=Sources() if stacks else None,
    )


class Recording:
    """One recording under way: follows the loop, turns the recorder on and off, and writes each step as it closes."""

    def __init__(
        self,
        *,
        writer: RunWriter,
        selection: Selection,
        sites: Sites,
        level: Level,
        inputs: bool,
        reference: Reference | None,
        sources: Sources | None,
    ) -> None:
        self.folder = writer.folder
        self.complaints: list[str] = []
        """What was asked for and never came; known when the block has ended."""
        self.num_events = 0
        self.num_steps = 0
        """How many steps the loop took, recorded or not."""
        self._writer = writer
        self._selection = selection
        self._sites = sites
        self._reference = reference
        self._sources = sources
        self._filter = None if selection.takes_everything else Filter(selection)
        self._clock = StepClock(self._close_step)
        self._level = level
        self._tensor_file: TensorFileWriter | None = None
        self._recorder = OpRecorder(
            sites=sites,
            clock=self._clock,
            wanted=self._filter,
            inputs=inputs,
            reference=reference,
            sources=sources,
            on_row=self._write_tensor if level == "tensors" else None,
            on_error=self.failed,
        )
        self._eager = contextlib.ExitStack()
        self._is_on = False
        self._stopped = False
        self._recorded: set[int] = set()
        self._began = time.perf_counter()
        self._step_began = self._began
        self._losses: list[Tensor] = []
        self._unscaled: list[tuple[Tensor, Tensor]] = []
        self._scaler: Any = None
        self._last_optimizer: Optimizer | None = None
        self._gradients_taken = False
        self._begun = False
        self._grad_norm: float | None = None

    @property
    def step(self) -> int:
        """The step that is open now."""
        return self._clock.step

    @property
    def num_recorded(self) -> int:
        """How many steps have been recorded so far."""
        return len(self._recorded)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Follow the loop inside the block; write what is left at its end, and say what was asked for and never came."""
        status: Literal["finished", "failed"] = "failed"
        try:
            with observing_loop(self):
                self._switch(on=self._selection.wants_step(0))
                yield
            status = "finished"
        finally:
            self._finish(status)

    # -- LoopObserver ---------------------------------------------------------------------------------------------------

    def forward_enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Push the module's site; a call from the loop may close a step."""
        recorder = self._recorder
        outermost = not recorder.stack and not self._clock.in_backward
        if outermost and not self._clock.in_step:
            self._clock.forward(with_gradients=torch.is_grad_enabled())
        elif outermost:
            self._clock.phase = Phase.FORWARD if torch.is_grad_enabled() else Phase.EVAL  # a closure inside step()
        site = self._sites.of_module(module, recorder.stack[-1] if recorder.stack else None)
        if outermost and self._is_on:
            self._begin_step()
            self._take_inputs(site, args)
        recorder.stack.append(site)

    def forward_leave(self, module: nn.Module) -> None:
        """Pop the module's site."""
        stack = self._recorder.stack
        if stack:
            stack.pop()
        if not stack and self._clock.in_step and not self._clock.in_backward:
            self._clock.phase = Phase.OPTIMIZER

    def backward_enter(self, roots: tuple[Any, ...]) -> None:
        """Keep the loss and begin the backward phase."""
        nested = self._clock.in_backward
        self._clock.backward_enter()
        if nested:
            return
        if self._is_on:
            self._begin_step()
        root = roots[0] if roots else None
        if isinstance(root, Tensor) and root.numel() == 1:
            with self._unseen():
                loss = next((plain for scaled, plain in self._unscaled if scaled is root), root)
                self._losses.append(loss.detach().clone())
        self._unscaled.clear()
        self._call("backward", {})

    def backward_leave(self) -> None:
        """Count the microbatch."""
        self._clock.backward_leave()
        if not self._clock.in_backward:
            if self._is_on:
                self._quietly(self._recorder.take_pending)
                self._recorder.learn_gradients(p for model in self._sites.models for p in model.parameters())
            self._recorder.new_microbatch()

    def step_enter(self, optimizer: Optimizer) -> None:
        """Take the gradients as the optimizer sees them."""
        self._clock.step_enter(optimizer)
        if self._is_on:
            self._quietly(lambda: self._take_gradients(optimizer))
            self._recorder.begin_optimizer(optimizer)
        self._call("step", {"optimizer": type(optimizer).__name__, "lr": _learning_rates(optimizer)})

    def step_leave(self, optimizer: Optimizer) -> None:
        """Count the attempt."""
        self._recorder.end_optimizer()
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer)

    def step_skipped(self, optimizer: Optimizer) -> None:
        """Count the attempt that a scaler did not let through."""
        if self._is_on:
            self._quietly(lambda: self._take_gradients(optimizer))
        self._last_optimizer = optimizer
        self._clock.step_leave(optimizer, skipped=True)
        self._call("step", {"optimizer": type(optimizer).__name__, "skipped": True})

    def called(self, call: str, owner: Any, detail: dict[str, Any]) -> None:
        """Note what the loop did between forward, backward and step."""
        if call == "scale":
            self._scaler = owner
            self._unscaled.extend(zip(tensors_in(detail["scaled"]), tensors_in(detail["outputs"]), strict=False))
            return
        if call == "zero_grad":
            self._clock.zero_grad()
            self._recorder.end_optimizer()
        if call in ("unscale", "update_scale"):
            self._scaler = owner
            if call == "update_scale":
                return
        if call == "load":
            self._sites.refresh()
        with self._unseen():
            self._call(call, {key: _plain(value) for key, value in detail.items()})

    def failed(self, error: Exception) -> None:
        """Stop recording with one warning; the training goes on."""
        if self._stopped:
            return
        self._stopped = True
        self._recorder.paused = True
        self._switch(on=False)
        reason = f"{type(error).__name__}: {error}"
        if self._tensor_file is not None:
            self._tensor_file.discard()
            self._tensor_file = None
        self._writer.note(f"Recording stopped at step {self._clock.step}: {reason}")
        warnings.warn(
            f"roundoff stopped recording to '{self.folder}' at step {self._clock.step}; the training goes on.\n"
            f"  why: {reason}",
            RecordingStoppedWarning,
            stacklevel=2,
        )

    # -- steps ----------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._sites.refresh()
        if self._level == "tensors":
            self._tensor_file = self._writer.tensors(self._clock.step)
        self._quietly(self._take_parameters)

    def _close_step(self) -> None:
        clock = self._clock
        self.num_steps += 1
        if self._stopped:
            return
        with self._unseen():
            if self._is_on:
                self._write_step()
            self._write_metrics()
        self._begun = False
        self._gradients_taken = False
        self._grad_norm = None
        self._losses.clear()
        self._step_began = time.perf_counter()
        if self._writer.stopped is not None:
            self._stopped = True
            self._switch(on=False)
            return
        self._switch(on=self._selection.wants_step(clock.step + 1))

    def _write_step(self) -> None:
        recorder = self._recorder
        if not self._gradients_taken:
            self._take_gradients(None)
        rows = recorder.new_step()
        self._grad_norm = _grad_norm(rows, recorder.ops.code("gradient"))
        if self._tensor_file is not None:
            self._tensor_file.close()
            self._tensor_file = None
        self._recorded.add(self._clock.step)
        if len(rows):
            lines = self._sources.lines if self._sources else []
            columns = rows.to_columns(
                self._clock.step, self._sites.names, recorder.ops.values, recorder.outputs.values,
                recorder.parameters.values, lines,
            )  # fmt: skip
            self._writer.write_events(columns)
            self.num_events += len(rows)
            self._write_hashes(rows)
        self._writer.flush()

    def _write_hashes(self, rows: Rows) -> None:
        """Repeat the hashes of inputs, parameters and gradients in the table that ranks and resumed runs compare."""
        ops = self._recorder.ops.values
        places = [i for i, key in enumerate(rows.keys()) if key[3] < 3]
        if not places:
            return
        keys = [rows.keys()[i] for i in places]
        names = [
            self._recorder.parameters.values[key[6]] if key[6] >= 0 else f"{self._sites.names[key[2]]}[{key[5]}]"
            for key in keys
        ]
        self._writer.write_hashes(
            HashColumns(
                step=np.full(len(places), self._clock.step, dtype=np.int32),
                microbatch=np.array([key[1] for key in keys], dtype=np.int16),
                kind=Interned.of([ops[key[3]] for key in keys]),
                name=Interned.of(names),
                hash=np.ascontiguousarray(rows.numbers()[places, at.HASH]).view(np.uint64),
            )
        )

    def _write_metrics(self) -> None:
        clock = self._clock
        optimizer = self._last_optimizer if clock.num_attempts else None
        rates = _learning_rates(optimizer) if optimizer is not None else []
        losses = [float(loss) for loss in self._losses]
        self._writer.write_metrics(
            Metrics(
                step=clock.step,
                loss=math.fsum(losses) / len(losses) if losses else None,
                lr=rates[0] if rates else None,
                loss_scale=_loss_scale(self._scaler),
                skipped=clock.skipped,
                grad_norm=self._grad_norm,
                seconds=time.perf_counter() - self._step_began,
                optimizer=clock.optimizer,
            )
        )

    def _switch(self, *, on: bool) -> None:
        if on == self._is_on:
            return
        self._is_on = on
        if on:
            self._eager.enter_context(torch.compiler.set_stance("force_eager"))
            push_mode(self._recorder)
        else:
            remove_mode(self._recorder)
            self._eager.close()

    def _finish(self, status: Literal["finished", "failed"]) -> None:
        try:
            if self._begun or self._clock.has_begun or (self._is_on and len(self._recorder.rows)):
                self._close_step()
        finally:
            self._switch(on=False)
            if self._tensor_file is not None:
                self._tensor_file.discard()
            self.complaints = self._complaints() if status == "finished" else []
            for complaint in self.complaints:
                self._writer.note(complaint)
            self._writer.close(status=status)

    def _complaints(self) -> list[str]:
        if self._stopped:
            return []
        found: list[str] = []
        steps = self._selection.steps
        missing = sorted(set(steps) - self._recorded)[:8] if steps is not None else []
        if missing and len(missing) == len(set(steps or ())) and not self._recorded:
            found.append(f"none of the steps asked for was reached: the loop took {self.num_steps} steps.")
        elif missing:
            found.append(f"step {missing[0]} and later ones were never reached: the loop took {self.num_steps} steps.")
        elif not self._recorded:
            found.append("no step was seen: nothing was recorded.")
        if self._filter is not None and self._recorded:
            found.extend(f"{complaint}." for complaint in self._filter.complaints())
        if self._recorder.num_unreadable:
            found.append(f"{self._recorder.num_unreadable} tensors could not be read (fake, or of a foreign subclass).")
        if self._reference is not None:
            found.extend(f"{op} has no reference: {why}" for op, why in sorted(self._reference.not_judged.items()))
        return found

    # -- tensors that no op computes --------------------------------------------------------------------------------------

    def _take_inputs(self, site: int, args: tuple[Any, ...]) -> None:
        phase = self._clock.phase
        values = [*args, *keyword_arguments().values()]
        with self._unseen():
            for index, x in enumerate(tensor for value in values for tensor in _all_tensors(value)):
                self._recorder.add_named(
                    x, op="input", phase=phase, site=site,
                    output=self._recorder.outputs.code(f"output{index}"), microbatch=self._clock.microbatch,
                )  # fmt: skip

    def _take_parameters(self) -> None:
        for model in self._sites.models:
            for parameter in model.parameters():
                site, name = self._sites.of_parameter(parameter)
                if name is not None:
                    self._recorder.add_named(parameter, op="parameter", phase=Phase.FORWARD, site=site, parameter=name)

    def _take_gradients(self, optimizer: Optimizer | None) -> None:
        """Take the gradients of one optimizer's parameters, or of all models where nobody steps."""
        if self._gradients_taken:
            return
        self._gradients_taken = optimizer is not None
        if optimizer is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
        else:
            parameters = [p for model in self._sites.models for p in model.parameters()]
        for parameter in parameters:
            if parameter.grad is not None:
                site, name = self._sites.of_parameter(parameter)
                self._recorder.add_named(parameter.grad, op="gradient", phase=Phase.BACKWARD, site=site, parameter=name)

    def _write_tensor(self, x: Tensor, place: int, key: tuple[int, int, int, int, int, int]) -> None:
        dtype = file_dtype(x)
        if self._tensor_file is None:
            self._tensor_file = self._writer.tensors(self._clock.step)
        if dtype is None:
            return
        phase, microbatch, site, op, nth, output = key
        recorder = self._recorder
        name = (
            f"{PHASES[phase]}/{microbatch}/{self._sites.names[site]}/"
            f"{recorder.ops.values[op]}#{nth}:{recorder.outputs.values[output]}"
        )
        self._tensor_file.add(
            name, bytes_of(x), dtype=dtype, shape=tuple(x.shape), content_hash=recorder.rows.content_hash(place)
        )

    # -- small things -----------------------------------------------------------------------------------------------------

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

    def _quietly(self, action: Any) -> None:
        with self._unseen():
            action()


def _all_tensors(value: Any) -> Iterator[Tensor]:
    """Give the tensors of an argument, looking into containers and mappings (a batch as a dict)."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _all_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _all_tensors(item)
    elif isinstance(value, Tensor):
        yield value


def _plain(value: Any) -> JsonValue:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value  # type: ignore[no-any-return]


def _learning_rates(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _grad_norm(rows: Rows, gradient: int) -> float | None:
    places = [place for place, key in enumerate(rows.keys()) if key[3] == gradient]
    return math.sqrt(rows.numbers()[places, at.SUM_SQUARES].sum()) if places else None


def _loss_scale(scaler: Any) -> float | None:
    if scaler is None:
        return None
    scale = scaler.get_scale()
    return float(scale) if scale is not None else None
