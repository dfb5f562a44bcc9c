"""Checks a device with the user's own step: every op is run on the device twice, on the CPU, and in fp64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from roundoff.errors import first_line
from roundoff.record.event_selection import EventFilter, EventSelection
from roundoff.record.ops.interceptor import OpInterceptor, OpPlace
from roundoff.record.ops.op_table import OpInfo, computed_tensors
from roundoff.record.reference import Reference
from roundoff.record.reference.exact_rerun import CallPiece, run_again, run_in_fp64
from roundoff.record.reference.judge import ErrorTally
from roundoff.record.reference.op_call import OpCall, Signature
from roundoff.record.reference.output_scales import scales
from roundoff.record.tensor_bytes import bytes_of
from roundoff.runs import JsonValue
from roundoff.torch_private import hidden_from_modes

MIN_ULPS = 16.0
"""An op whose largest error is smaller is good: kernels add up in different orders."""
MIN_RATIO = 8.0
"""An op is also good if its error is smaller than this many times that of the CPU in the same format."""
MAX_KEPT_BYTES = 64 * 2**20
"""The arguments of an op are kept for a script if they are not larger than this."""


class StepChecked(SystemExit):
    """Ends the script when the chosen steps have been checked."""


@dataclass(slots=True, kw_only=True)
class CheckedOp:
    """All calls of one op on one device with the same formats and shapes; the numbers are those of the worst."""

    overload: str
    device: str
    arguments: str
    """Formats and shapes of its tensors: `float32[32x64], float32[64x128]`."""
    place: OpPlace
    num_calls: int = 0
    max_ulps: float = 0.0
    """Its largest error against fp64, in units of the result's eps."""
    rms_ulps: float = 0.0
    cpu_ulps: float | None = None
    """The largest error of the CPU with the same arguments; None if it has no such op."""
    is_repeatable: bool = True
    """Whether two runs on the device gave the same bits."""
    channels: tuple[int, ...] = ()
    """The channels that are wrong, where not all are; the last dimension, of four or more the second."""
    num_channels: int = 0
    step: int = 0
    call: OpCall | None = field(default=None, repr=False)
    """The worst call, its tensors on the host, if the op is to be reported and they are not too large."""

    @property
    def is_wrong(self) -> bool:
        """Whether it errs by far more than it may, given its format, and than the CPU does."""
        return self.max_ulps > MIN_ULPS and not self.max_ulps <= MIN_RATIO * (self.cpu_ulps or 0.0)

    @property
    def is_reported(self) -> bool:
        """Whether it should be reported to the makers of the device."""
        return self.is_wrong or not self.is_repeatable

    def exact(self) -> list[tuple[Tensor, Tensor]]:
        """Return the results of the worst call in fp64, each with the size of one unit of its error, over eps."""
        assert self.call is not None
        references = run_in_fp64(self.call)
        sizes = scales(self.call, references)
        pairs = zip(references, sizes, strict=True)
        return [(x, (x.abs() if size is None else size.to(torch.float64)).expand_as(x)) for x, size in pairs]

    def to_object(self) -> dict[str, JsonValue]:
        """Return what was found out, for JSON."""
        return {
            "op": self.overload,
            "device": self.device,
            "arguments": self.arguments,
            "site": self.place.site,
            "phase": self.place.phase,
            "step": self.step,
            "calls": self.num_calls,
            "max_ulps": self.max_ulps,
            "rms_ulps": self.rms_ulps,
            "cpu_max_ulps": self.cpu_ulps,
            "repeatable": self.is_repeatable,
            "wrong": self.is_wrong,
            "wrong_channels": list(self.channels),
            "channels": self.num_channels,
        }


class DeviceChecker:
    """Runs the ops of a training as they are, and the chosen ones on a device again in other ways.

    Nothing that it does reaches the training: it works on copies, and an op that cannot be checked is noted.
    """

    def __init__(self, selection: EventSelection) -> None:
        self.filter = EventFilter(selection)
        self.num_on_cpu = 0
        self.steps: list[int] = []
        """The steps that were checked to their end."""
        self._selection = selection
        self._ops: dict[tuple[str, str, str], CheckedOp] = {}
        self._judge = _HostJudge()
        self._step = 0

    @property
    def ops(self) -> list[CheckedOp]:
        """What was checked: what is to be reported first, and the largest error first."""
        return sorted(self._ops.values(), key=lambda op: (not op.is_reported, not op.is_wrong, -op.max_ulps))

    @property
    def not_judged(self) -> dict[str, str]:
        """Why ops could not be checked, by name."""
        return self._judge.not_judged

    def run_op(self, place: OpPlace, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op of the training, and check it if it is one of the chosen."""
        if not self._selection.wants_step(self._step) or not self.filter.wants(place.phase, place.site, place.op):
            return func(*args, **kwargs)
        with hidden_from_modes():
            saved = self._judge.before(func, args, kwargs)
        result = func(*args, **kwargs)
        if saved is not None:
            try:
                with hidden_from_modes():
                    outputs = computed_tensors(func, info, args, kwargs, result)
                    self._check(place, saved, func, args, kwargs, outputs)
            except (
                Exception
            ) as error:  # for example, no memory for the copies: the script goes on, and the other ops are checked
                self.not_judged[place.op] = first_line(error)
        return result

    def step_ended(self, step: int) -> None:
        """Note the end of a step; the last of the chosen ones ends the script."""
        if self._selection.wants_step(step) and step not in self.steps:  # the end of the script closes it once more
            self.steps.append(step)
        self._step = step + 1
        if not self._selection.has_steps_after(step):
            raise StepChecked(0)

    def _check(self, place: OpPlace, saved: Any, func: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> None:
        device = next((str(x.device) for x in outputs if x.device.type != "cpu"), None)
        if device is None:
            self.num_on_cpu += 1
            return
        judge = self._judge
        errors = judge.after(saved, func, args, kwargs, outputs)
        if judge.call is None or not any(errors):
            return
        max_ulps = max(error.max_ulps for error in errors if error is not None)
        arguments = ", ".join(_describe(x) for x in judge.call.tensors())
        known = self._ops.setdefault(
            (str(func), device, arguments),
            CheckedOp(overload=str(func), device=device, arguments=arguments, place=place),
        )
        known.num_calls += 1
        is_repeatable = judge.repeats(func, outputs)
        # an error that is not a number is as bad as an infinite one
        is_worst = known.num_calls == 1 or not max_ulps <= known.max_ulps or known.is_repeatable > is_repeatable
        known.is_repeatable &= is_repeatable
        if not is_worst:
            return
        known.place, known.step, known.max_ulps = place, self._step, max_ulps
        known.rms_ulps = max(error.rms_ulps for error in errors if error is not None)
        known.cpu_ulps = judge.cpu_ulps()
        known.channels, known.num_channels = judge.wrong_channels()
        if known.is_reported and sum(x.nbytes for x in judge.call.tensors()) <= MAX_KEPT_BYTES:
            known.call = judge.call.change_tensors(lambda x: x.clone())


@contextlib.contextmanager
def checking_device(selection: EventSelection) -> Iterator[DeviceChecker]:
    """Check every op that the loop inside the block runs on a device, in the chosen steps; the last one ends the block.

    >>> with checking_device(EventSelection(steps=(0,))) as checker:
    ...     pass
    >>> checker.ops
    []
    """
    checker = DeviceChecker(selection)
    with contextlib.suppress(StepChecked), OpInterceptor(checker, on_step_end=checker.step_ended).running():
        yield checker


class _HostJudge(Reference):
    """Judges ops of a device on the host: against fp64, and next to what the CPU computes in the same format."""

    def __init__(self) -> None:
        super().__init__("fp64")
        self.call: OpCall | None = None
        """The call that was judged last, its tensors on the host, as they were before it."""
        self._on_device: OpCall | None = None
        self._cpu: list[ErrorTally] | None = None
        self._shapes: set[torch.Size] = set()
        self._whole: list[tuple[ErrorTally, Tensor, Tensor, Tensor | None]] = []
        """Results that were judged in one piece: tally, result, reference and scale."""

    def after(
        self, saved: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Sequence[Tensor]
    ) -> list[Any]:
        """Judge a call, and keep what else is to be said about it."""
        self._cpu, self._whole = [], []
        given = OpCall(signature=Signature.of(func), args=args, kwargs=kwargs)
        self._on_device = given.change_tensors(lambda x: saved.overwritten.get(id(x), x))
        self.call = self._on_device.change_tensors(Tensor.cpu)
        self._shapes = {x.shape for x in outputs}
        return super().after(saved, func, args, kwargs, [x.cpu() for x in outputs])

    def repeats(self, func: Any, outputs: Sequence[Tensor]) -> bool:
        """Return whether the device computes the same bits once more."""
        if func.namespace != "aten" or self._on_device is None:
            return True
        try:
            again = run_again(self._on_device)
        except Exception:  # what cannot be run again was judged as far as possible
            return True
        pairs = zip(again, outputs, strict=False)
        return all(bytes_of(x).tobytes() == bytes_of(y).tobytes() for x, y in pairs)

    def cpu_ulps(self) -> float | None:
        """Return the largest error of the CPU in the same call; None if it could not compute it."""
        if self._cpu is None:
            return None
        results = [tally.result() for tally in self._cpu]
        return max((result.max_ulps for result in results if result is not None), default=None)

    def wrong_channels(self) -> tuple[tuple[int, ...], int]:
        """Return the channels with large errors, unless all have them, and how many there are."""
        for tally, output, reference, size in self._whole:
            ulps = tally.ulps_of_each(output, reference, size)
            dim = 1 if ulps.dim() >= 4 else ulps.dim() - 1
            is_wrong = ~(ulps.movedim(dim, 0).flatten(1).amax(1) <= MIN_ULPS)  # also where it is not a number
            found = is_wrong.nonzero().flatten().tolist()
            if 0 < len(found) < len(is_wrong):
                return tuple(found), len(is_wrong)
        return (), 0

    def _home(self, tensor: Tensor) -> Tensor:
        return tensor.cpu()

    def _judge(self, piece: CallPiece, tallies: Sequence[ErrorTally | None]) -> None:
        references = run_in_fp64(piece.call)
        sizes = scales(piece.call, references)
        here = _attempt(lambda: run_again(piece.call))
        for place, (output, reference, size) in enumerate(zip(piece.outputs, references, sizes, strict=True)):
            tally = tallies[piece.first + place]
            if tally is None:
                continue
            tally.add(output, reference, size)
            if output.dim() > 1 and output.shape in self._shapes:
                self._whole.append((tally, output, reference, size))
            if here is None or self._cpu is None:
                self._cpu = None
            else:
                self._cpu.append(ErrorTally(output.dtype))
                self._cpu[-1].add(here[place].to(output.dtype), reference, size)


def _attempt(work: Callable[[], list[Tensor]]) -> list[Tensor] | None:
    try:
        return work()
    except Exception:  # the CPU lacks this op in this format
        return None


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}[{'x'.join(map(str, x.shape))}]"
