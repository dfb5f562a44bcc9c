"""The dispatch mode that sees every op of a step and turns its tensors into rows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from roundoff.kernels.compiled import READABLE_DTYPE_CODES
from roundoff.kernels.host_copies import HostCopies
from roundoff.record.event_selection import EventFilter, RecordingSettings
from roundoff.record.loop.follower import LoopFollower
from roundoff.record.loop.step_clock import PHASES, Phase
from roundoff.record.ops.op_table import OpInfo, OpKind, computed_tensors, describe_op, read_arguments
from roundoff.record.ops.rows import StepRows
from roundoff.record.ops.site_tracking import PLAIN, NameCodes, SiteTrackingMode
from roundoff.record.reference import OpJudge
from roundoff.record.reference.op_call import list_tensors
from roundoff.record.source_lines import Sources
from roundoff.torch_private import (
    has_function_modes,
    has_no_memory,
    hidden_from_modes,
    is_only_mode,
    is_transformed,
    is_zero_tensor,
    keep_group_of,
    local_tensor,
    never_compiled,
    simulated_ranks,
    sparse_values,
)

INPUT, PARAMETER, GRADIENT = range(3)
"""Codes of the names that tensors have in place of an op, where no op computed them."""

CUT = "aten.detach"
"""The one view that is an event: where a forward leaves the graph."""

_ROWS_PER_CHECK = 1024


class OpRecorder(SiteTrackingMode):
    """Sees every op while it is pushed, and adds a row for each tensor that an op computed.

    Errors raised here go to `follower.failed`, never to the training.
    """

    def __init__(
        self,
        follower: LoopFollower,
        settings: RecordingSettings,
        *,
        wanted: EventFilter | None,
        judge: OpJudge | None,
        sources: Sources | None,
        on_row: Callable[[Tensor, int], None] | None,
    ) -> None:
        super().__init__(follower, sources=sources)
        self._copies = HostCopies()
        self.rows = StepRows(self._copies)
        self.ops = NameCodes("input", "parameter", "gradient")
        self.outputs = NameCodes(*(f"output{i}" for i in range(8)))
        self.num_unreadable = 0
        self.simulated: dict[int, StepRows] = {}
        """Rows of the ranks besides the first, where torch simulates all of them in this process (LocalTensor)."""
        self.on_simulated_row: Callable[[int, Tensor, int], None] | None = None
        """Called with the rank, tensor and place of each, where whole tensors are wanted."""
        self._wanted = wanted
        self._inputs = settings.inputs
        self._histograms = settings.histograms
        self._judge = judge
        self._on_row = on_row
        self._computes = settings.inputs or judge is not None or on_row is not None
        self._infos: dict[Any, tuple[OpInfo, int]] = {}
        self._counts: list[dict[tuple[int, int], int]] = [{} for _ in PHASES]
        self._pending: list[tuple[Tensor, tuple[int, int, int, int, int, int, int, int]]] = []
        self._instruction = (0, 0)
        self._process = os.getpid()
        self._one_at_a_time = threading.RLock()  # autograd has a thread for each accelerator

    # -- called by the session ----------------------------------------------------------------------------------------

    def new_microbatch(self) -> None:
        """Count ops from 0 again, except those of the optimizer, which belong to the whole step."""
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.EVAL):
            self._counts[phase].clear()

    def new_step(self) -> StepRows:
        """Return the rows of the step that ended, and start with none."""
        self.take_pending()
        self.rows.deliver()
        rows, self.rows = self.rows, StepRows(self._copies)
        for counts in self._counts:
            counts.clear()
        self.forget_older_nodes()
        return rows

    def add_named(self, x: Tensor, *, op: str, phase: Phase, site: int, parameter: str | None = None,
                  output: int = 0, microbatch: int = 0, has_source: bool = False) -> None:  # fmt: skip
        """Add a row for a tensor that is not an op's output: an input, a parameter, a gradient.

        In a replay, one with `has_source` gets the line of the user's call that is repeated.
        """
        op_code = self.ops.code(op)
        if self._wanted and not self._wanted.wants(PHASES[phase], self._sites.names[site], op):
            return
        code = -1 if parameter is None else self.parameters.code(parameter)
        nth = self._count(phase, site, op_code) if output == 0 else self._counts[phase][site, op_code] - 1
        sources = self._sources if has_source else None
        source = -1 if sources is None or sources.stand_in is None else sources.here()
        self._add(x, phase, microbatch, site, op_code, nth, self._output(output), code, source)

    def take_pending(self) -> None:
        """Read the results of collectives that had not finished when they were called."""
        pending, self._pending = self._pending, []
        for x, key in pending:
            self._add(x, *key)

    # -- called by torch ----------------------------------------------------------------------------------------------

    @never_compiled
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op unchanged and summarize what it computed."""
        if self.paused and not self._hears_forward():
            return func(*args, **kwargs) if kwargs else func(*args)
        known = self._infos.get(func)
        if known is None:
            known = self._learn(func)
        info = known[0]
        if info.kind is OpKind.NOTHING:
            result = func(*args, **kwargs) if kwargs else func(*args)
            self._note_node()
            if info.name == CUT and self._instruction != _instruction(sys._getframe().f_back):
                self._note_cut(known[1], args[0])
            return result
        self._instruction = _instruction(sys._getframe().f_back)
        # not for tensors that implement ops themselves (nested ones, subclasses): they would call this mode again
        if info.kind is OpKind.COMPOSITE and is_only_mode() and not types and not any(map(_is_nested, args)):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        saved = self._before(func, info, args, kwargs) if self._judge or self._inputs else None
        result = func(*args, **kwargs) if kwargs else func(*args)
        if info.loses_versions:
            increment_version([x for x in args[0] if x.device.type == "cpu" and not x.is_inference()])
        try:
            with self._one_at_a_time:
                if self._computes or has_function_modes():
                    with hidden_from_modes():
                        self._after(func, info, known[1], args, kwargs, result, saved)
                else:
                    self._after(func, info, known[1], args, kwargs, result, saved)
        except Exception as error:
            self.paused = True
            self._follower.failed(error)
        return result

    def _learn(self, func: Any) -> tuple[OpInfo, int]:
        info = describe_op(func)
        known = self._infos[func] = (info, self.ops.code(info.name))
        return known

    def _note_cut(self, op: int, x: Any) -> None:
        """Add a row where a forward leaves the graph (`detach`), if lines are requested: no gradient passes here."""
        if self.paused or self._sources is None or self._clock.phase is not Phase.FORWARD:
            return
        if not x.requires_grad or not torch.is_grad_enabled():
            return
        with hidden_from_modes():
            site, parameter, source = self._where(Phase.FORWARD, ())
            nth = self._count(Phase.FORWARD, site, op)
            if not self._wanted or self._wanted.wants("forward", self._sites.names[site], CUT):
                self._add(x.detach(), Phase.FORWARD, self._clock.microbatch, site, op, nth, 0, parameter, source)

    def _before(self, func: Any, info: OpInfo, args: Any, kwargs: Any) -> Any:
        try:
            with hidden_from_modes():
                inputs = read_arguments(func, info, args, kwargs or {}) if self._inputs else []
                if info.mutated:
                    inputs = [x.detach().clone() for x in inputs]
                return inputs, self._judge.before(func, args, kwargs or {}) if self._judge else None
        except Exception as error:
            self.paused = True
            self._follower.failed(error)
            return None

    def _after(self, func: Any, info: OpInfo, op: int, args: Any, kwargs: Any, result: Any, saved: Any) -> None:
        clock = self._clock
        phase = self._phase()
        if self.paused:
            return
        if info.kind is OpKind.COLLECTIVE:
            keep_group_of(args)
        elif self._pending and not clock.in_backward:
            self.take_pending()
        site, parameter, source = self._where(phase, args)
        nth = self._count(phase, site, op)
        if self._wanted and not self._wanted.wants(PHASES[phase], self._sites.names[site], info.name):
            return
        microbatch = 0 if phase is Phase.OPTIMIZER else clock.microbatch
        if info.kind is OpKind.COLLECTIVE:
            for output, x in enumerate(list_tensors(args[0])):
                self._pending.append((x, (phase, microbatch, site, op, nth, self._output(output), parameter, source)))
            return
        if self._inputs and saved is not None:
            for index, x in enumerate(saved[0]):
                code = self.outputs.code(f"input{index}")
                self._add(x, phase, microbatch, site, op, nth, code, parameter, source, is_result=False)
        found = [result] if type(result) in PLAIN else computed_tensors(func, info, args, kwargs or {}, result)
        introduced = None
        if self._judge is not None and saved is not None and saved[1] is not None:
            introduced = self._judge.after(saved[1], func, args, kwargs or {}, found)
        per_tensor = info.per_tensor and phase is Phase.OPTIMIZER
        for output, x in enumerate(found):
            if per_tensor:
                site, parameter = self._of_list_entry(args[0], output, x)
            place = self._add(x, phase, microbatch, site, op, nth, self._output(output), parameter, source)
            if introduced and place >= 0 and (error := introduced[output]) is not None:
                self.rows.note_introduced(place, error)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _count(self, phase: Phase, site: int, op: int) -> int:
        counts = self._counts[phase]
        key = (site, op)
        nth = counts.get(key, 0)
        counts[key] = nth + 1
        return nth

    def _output(self, index: int) -> int:
        return index if index < 8 else self.outputs.code(f"output{index}")

    def _add(self, x: Tensor, phase: int, microbatch: int, site: int, op: int, nth: int, output: int,
             parameter: int, source: int, *, is_result: bool = True) -> int:  # fmt: skip
        if type(x) not in PLAIN or x.layout is not torch.strided or x.is_meta:
            with hidden_from_modes():
                ranks = None if type(x) in PLAIN else simulated_ranks(x)
                if ranks is not None:
                    return self._add_ranks(ranks, (phase, microbatch, site, op, nth, output, parameter, source))
                plain = _readable(x)
            if plain is None:
                self.num_unreadable += 1
                return -1
            x = plain
        try:
            place = self.rows.add(x, phase, microbatch, site, op, nth, output, parameter, source)
        except (RuntimeError, TypeError):
            if is_zero_tensor(x):  # forward-mode differentiation uses this in place of a tensor of zeros
                with hidden_from_modes():
                    zeros = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
                return self._add(zeros, phase, microbatch, site, op, nth, output, parameter, source)
            if x.dtype in READABLE_DTYPE_CODES and not has_no_memory(x):
                raise
            self.num_unreadable += 1
            return -1
        if not place % _ROWS_PER_CHECK and os.getpid() != self._process:
            self.paused = True  # a worker process of the script: its rows are never written
        if self._on_row is not None:
            self.rows.read(x, place, self._on_row)
        if self._histograms and is_result:  # an input is the output of another op, which was summarized there
            self.rows.histograms.add(x, place)
        return place

    def _add_ranks(self, ranks: Mapping[int, Tensor], key: tuple[int, int, int, int, int, int, int, int]) -> int:
        """Add a row for every rank that torch simulates in this process; return the place of the first one's."""
        first, *others = sorted(ranks)
        for rank in others:
            x = _readable(ranks[rank])
            if x is None:
                self.num_unreadable += 1
                continue
            rows = self.simulated.setdefault(rank, StepRows(self._copies))
            place = rows.add(x, *key)
            if self.on_simulated_row is not None:
                self.on_simulated_row(rank, x, place)
        return self._add(ranks[first], *key)


def _instruction(frame: FrameType | None) -> tuple[int, int]:
    """Return what distinguishes an op that the user's code calls from one that torch calls inside another op.

    Autograd detaches results that it saves; that happens within the same instruction. Its threads for accelerators run
    no Python code but ours.
    """
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_nested


def _readable(x: Tensor) -> Tensor | None:
    """Return the plain memory of a sharded or sparse tensor, or None where there is none to read."""
    if type(x) not in PLAIN:
        local = local_tensor(x)
        if local is not None:
            return _readable(local)
        if hasattr(type(x), "__torch_dispatch__") and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None  # a subclass that does not compute with its own memory
    if x.layout is torch.sparse_coo:
        return sparse_values(x)
    if x.layout is not torch.strided or x.is_meta:
        return None
    return x


class NamedTensors:
    """Gives the recorder what no op computes: parameters, inputs of models, and gradients as an optimizer sees them."""

    def __init__(self, recorder: OpRecorder, follower: LoopFollower) -> None:
        self._recorder = recorder
        self._sites = follower.sites
        self._clock = follower.clock
        self._gradients_taken = False

    def new_step(self) -> None:
        """Get ready for the gradients of another step."""
        self._gradients_taken = False

    def take_parameters(self) -> None:
        """Record the values that a step starts from."""
        with hidden_from_modes():
            for parameter in self._sites.parameters():
                site, name = self._sites.of_parameter(parameter)
                self._recorder.add_named(parameter, op="parameter", phase=Phase.FORWARD, site=site, parameter=name)

    def take_inputs(self, site: int, arguments: Any) -> None:
        """Record the tensors with which the loop calls a model."""
        clock = self._clock
        with hidden_from_modes():
            batch = _tensors_of_batch(arguments)
            for index, x in enumerate(x for x in batch if not is_transformed(x)):
                self._recorder.add_named(
                    x,
                    op="input",
                    phase=clock.phase,
                    site=site,
                    output=index,
                    microbatch=clock.microbatch,
                    has_source=True,
                )

    def take_gradients(self, optimizer: Optimizer | None) -> None:
        """Record the gradients of one optimizer's parameters, or of all models if no optimizer steps; once per step."""
        if self._gradients_taken:
            return
        self._gradients_taken = True
        if optimizer is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
        else:
            parameters = list(self._sites.parameters())
        with hidden_from_modes():
            for parameter in parameters:
                if parameter.grad is not None:
                    site, name = self._sites.of_parameter(parameter)
                    self._recorder.add_named(
                        parameter.grad, op="gradient", phase=Phase.BACKWARD, site=site, parameter=name
                    )


def _tensors_of_batch(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, looking into lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_of_batch(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_of_batch(getattr(value, field.name, None))
