"""Does the result for a sample depend on its batch? One forward is played with other neighbours, op by op.

A kernel may add up in another order for another batch size, so that the same sample gets other bits alone than in a
batch. Each op's result for the sample is compared with that in the plain batch, and then replaced by it: what every op
introduces is measured by itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from roundoff.kernels.compiled import widest_float
from roundoff.record.loop.sites import LOOP, Sites
from roundoff.record.ops.op_table import OpKind, computed_tensors, describe_op, read_arguments
from roundoff.record.source_lines import Sources
from roundoff.replay.arguments import external_tensors_in
from roundoff.replay.player import replay_sources
from roundoff.replay.replayed_step import ReplayedCodeRaised, ReplayedStep
from roundoff.replay.state import same_bits
from roundoff.replay.step_tape import FunctionEntry, ModelEntry, flatten_entries
from roundoff.runs import JsonValue
from roundoff.torch_private import DispatchMode, calls_of_modules, hidden_from_modes, push_mode, remove_mode

NUM_PADDED = 8
"""How many columns of padding are added."""
_IGNORED_TARGET = -100
_COPIES = frozenset({"aten.clone", "aten.copy_", "aten._to_copy", "aten.contiguous"})
"""They compute nothing, and whether a copy is made may depend on the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingOp:
    """An op whose result for a sample has other bits in another batch, although its input has the same."""

    op: str
    site: str
    source: str | None
    result: str
    """Format and shape of the result in the plain batch: `float32[32x64]`."""
    difference: float
    """The largest difference, relative to the largest number of the result."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it for JSON."""
        return {
            "op": self.op,
            "site": self.site,
            "source": self.source,
            "result": self.result,
            "difference": self.difference,
        }


@dataclass(slots=True, kw_only=True)
class PlayedBatch:
    """How the results of the sample differ in one changed batch."""

    name: str
    """`alone`, `in half of the batch`, ..."""
    ops: list[VaryingOp] = field(default_factory=list)
    """In the order in which they ran."""
    num_compared: int = 0
    why_not: str | None = None
    """Why it could not be played, or not to the end."""

    def to_object(self) -> dict[str, JsonValue]:
        """Return it for JSON."""
        ops: list[JsonValue] = [op.to_object() for op in self.ops]
        return {"batch": self.name, "compared": self.num_compared, "varying": ops, "why_not": self.why_not}


class _Layout(NamedTuple):
    """Where the samples are in the result of an op: one after the other, in groups of rows, along a dimension."""

    dim: int
    num_rows: int
    """How many rows each sample has."""


class _KeptOp(NamedTuple):
    """An op of the plain batch."""

    name: str
    site: str
    source: str | None
    results: list[Tensor]


_Take = Callable[[Tensor, Tensor, int, int], "tuple[Tensor, Tensor] | None"]
"""Returns the comparable parts of a result in the plain and in the changed batch; numbers say which op and result."""


def played_batches(
    step: ReplayedStep, *, sample: int | None = None, dim: int | None = None
) -> tuple[int, int, list[PlayedBatch]]:
    """Play the forward of a step, in eval mode, in other batches; return the sample, the batch size and the results.

    `dim` is the dimension of the inputs that counts the samples; None to find out.

    Raises:
        ReplayedCodeRaised: the batch has no such sample, or the forward cannot be played again.
    """
    batch = _Batch.of(step, dim)
    chosen = batch.size // 2 if sample is None else sample
    if chosen >= batch.size:
        raise ReplayedCodeRaised(f"the batch has {batch.size} samples, from 0 on")
    plain = _Keeper(step)
    plain.play(step, None)
    if not plain.ops:
        raise ReplayedCodeRaised(plain.why_stopped or "its forward computes nothing")
    samples = _Samples(chosen, batch.size)
    first = min(chosen, batch.size - batch.size // 2)
    alone, half = range(chosen, chosen + 1), range(first, first + batch.size // 2)
    rolled = [(place - 1) % batch.size for place in range(batch.size)]
    everything = range(batch.size)
    played = [_compare(step, plain, "played again", lambda x: x, lambda a, b, *_: (a, b))]
    for name, places, take in (
        ("alone", alone, samples.among(alone)),
        ("in half of the batch", half, samples.among(half)),
        ("at another place", rolled, samples.at((chosen + 1) % batch.size)),
        ("beside copies of itself", [chosen for _ in everything], samples.at(chosen)),
    ):
        played.append(_compare(step, plain, name, partial(batch.of_places, places=places), take))
    played.append(_with_padding(step, plain, batch))
    return chosen, batch.size, played


@dataclass(frozen=True, slots=True)
class _Batch:
    """How many samples a batch has, and which dimension of the inputs counts them."""

    size: int
    dim: int

    @classmethod
    def of(cls, step: ReplayedStep, dim: int | None) -> _Batch:
        """Find out about the batch of a step. Time may come first: then it is the targets that begin with samples."""
        given = [x for entry in flatten_entries(step.tape.entries) for x in _external(entry)]
        first = next((x for x in given if x.dim() > (dim or 0)), None)
        if first is None:
            raise ReplayedCodeRaised("its models get no tensor with samples")
        if dim is None:
            sizes = [x.shape[0] for x in given if x is not first and x.dim()]
            is_second = first.dim() > 2 and first.shape[0] not in sizes and first.shape[1] in sizes
            dim = 1 if is_second else 0
        if first.shape[dim] < 2:
            raise ReplayedCodeRaised("its batch is a single sample")
        return cls(first.shape[dim], dim)

    def of_places(self, x: Tensor, places: Sequence[int]) -> Tensor:
        """Return a tensor with the samples of some places; unchanged if it is not by sample."""
        dim = self.dim if x.dim() > self.dim and x.shape[self.dim] == self.size else 0
        if not x.dim() or x.shape[dim] != self.size or x.layout is not torch.strided:
            return x
        return x.index_select(dim, torch.tensor(places, device=x.device))


def _external(entry: Any) -> Iterator[Tensor]:
    if isinstance(entry, (ModelEntry, FunctionEntry)):
        yield from (found.copy for found in external_tensors_in((entry.args, entry.kwargs)))


class _Samples:
    """Finds a sample in results; which dimension holds the samples is learned where their number changes."""

    def __init__(self, chosen: int, size: int) -> None:
        self._chosen = chosen
        self._size = size
        self._layouts: dict[tuple[int, int], _Layout] = {}

    def among(self, places: range) -> _Take:
        """Return what finds the sample in a batch of some places."""

        def take(a: Tensor, b: Tensor, op: int, result: int) -> tuple[Tensor, Tensor] | None:
            layout = _layout_of(a, b, self._size, len(places))
            if layout is None:
                return None
            self._layouts[op, result] = layout
            return self._pair(a, b, layout, self._chosen - places.start, len(places))

        return take

    def at(self, place: int) -> _Take:
        """Return what finds the sample at a place of a batch of the same size."""

        def take(a: Tensor, b: Tensor, op: int, result: int) -> tuple[Tensor, Tensor] | None:
            layout = self._layouts.get((op, result))
            if layout is None or a.shape != b.shape:
                return None
            return self._pair(a, b, layout, place, self._size)

        return take

    def _pair(self, a: Tensor, b: Tensor, layout: _Layout, place: int, num: int) -> tuple[Tensor, Tensor]:
        """Return the rows of the sample, which lie together, or apart where time comes before the batch."""
        dim, rows = layout
        together = a.narrow(dim, self._chosen * rows, rows), b.narrow(dim, place * rows, rows)
        apart = a[self._chosen :: self._size], b[place::num]
        return apart if rows > 1 and not same_bits(*together) and _is_nearer(apart, together) else together


def _is_nearer(pair: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return _distance(*pair) < _distance(*other)


def _layout_of(a: Tensor, b: Tensor, size: int, num: int) -> _Layout | None:
    if a.dim() != b.dim() or num == size:
        return None
    changed = [dim for dim, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
    if len(changed) != 1:
        return None
    (dim,) = changed
    rows, rest = divmod(a.shape[dim], size)
    if rest or rows == 0 or b.shape[dim] != rows * num or (dim and rows > 1):
        return None
    return _Layout(dim, rows)


def _with_padding(step: ReplayedStep, plain: _Keeper, batch: _Batch) -> PlayedBatch:
    """Play the batch with more padding after each sample, if the model knows padding."""
    name = f"with {NUM_PADDED} more columns of padding"
    calls = [entry for entry in flatten_entries(step.tape.entries) if isinstance(entry, ModelEntry)]
    given = [x for call in calls for x in _external(call)]
    ids = next((x for x in given if x.dtype is torch.int64 and x.dim() == 2 and x.shape[batch.dim] == batch.size), None)
    if ids is None:
        return PlayedBatch(name=name, why_not="the model gets no token ids")
    indices = [m.padding_idx for call in calls for m in call.module.modules() if isinstance(m, nn.Embedding)]
    padding = next((index for index in indices if index is not None), None)
    if padding is None and not any(x is not ids and x.shape == ids.shape and _is_mask(x) for x in given):
        return PlayedBatch(name=name, why_not="there is no padding mask or index")
    time = 1 - batch.dim
    length = ids.shape[time]

    def pad(x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[:2] != ids.shape:
            return x
        fill: float = 0
        if x.dtype is torch.int64 and not _is_mask(x):
            fill = _IGNORED_TARGET if bool((x < 0).any()) else padding or 0
        shape = list(x.shape)
        shape[time] = NUM_PADDED
        return torch.cat([x, torch.full(shape, fill, dtype=x.dtype, device=x.device)], time)

    return _compare(step, plain, name, pad, lambda a, b, *_: _without_padding(a, b, batch.size, length))


def _is_mask(x: Tensor) -> bool:
    return x.dim() == 2 and bool(((x == 0) | (x == 1)).all())


def _without_padding(a: Tensor, b: Tensor, size: int, length: int) -> tuple[Tensor, Tensor] | None:
    """Return a plain result, and the part of one with padding that corresponds to it; None if there is no such part."""
    longer = length + NUM_PADDED
    if a.dim() and a.shape[0] == size * length and b.dim() == a.dim() and b.shape[0] == size * longer:
        by_sample = _cut(a.unflatten(0, (size, length)), b.unflatten(0, (size, longer)), length)
        by_time = _cut(a.unflatten(0, (length, size)), b.unflatten(0, (longer, size)), length)
        if by_sample is None or by_time is None:
            return None
        return by_time if not same_bits(*by_sample) and _is_nearer(by_time, by_sample) else by_sample
    return _cut(a, b, length)


def _cut(a: Tensor, b: Tensor, length: int) -> tuple[Tensor, Tensor] | None:
    if a.dim() != b.dim():
        return None
    for dim, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)):
        if x != y:
            if (x, y) != (length, length + NUM_PADDED):
                return None
            b = b.narrow(dim, 0, length)
    return a, b


def _compare(
    step: ReplayedStep, plain: _Keeper, name: str, change: Callable[[Tensor], Tensor], take: _Take
) -> PlayedBatch:
    comparer = _Comparer(step, plain.ops, take)
    comparer.play(step, change)
    return PlayedBatch(
        name=name, ops=comparer.varying, num_compared=comparer.num_compared, why_not=comparer.why_stopped
    )


class _Forward(DispatchMode):
    """Follows the ops of a forward that is played again."""

    def __init__(self, step: ReplayedStep) -> None:
        super().__init__()
        self.why_stopped: str | None = None
        self._sites: Sites = step.sites
        self._sources: Sources = replay_sources()
        self._is_following = True

    def play(self, step: ReplayedStep, change: Callable[[Tensor], Tensor] | None) -> None:
        """Play the forward in eval mode, up to a call that does not accept the changed batch."""
        with step.in_state(), self._following():
            try:
                step.play(forward_only=True, is_training=False, change=change, sources=self._sources)
            except ReplayedCodeRaised as error:
                self.why_stopped = self.why_stopped or str(error)

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        push_mode(self)
        try:
            yield
        finally:
            remove_mode(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._is_following:
            return result
        info = describe_op(func)
        if info.kind is not OpKind.RETURNED or info.name in _COPIES or not read_arguments(func, info, args, kwargs):
            return result
        with hidden_from_modes(), torch.no_grad():
            found = computed_tensors(func, info, args, kwargs, result)
            if results := [x for x in found if type(x) is Tensor and x.is_floating_point()]:
                self._see(info.name, results)
        return result

    def _see(self, name: str, results: list[Tensor]) -> None:
        raise NotImplementedError

    def _place(self) -> tuple[str, str | None]:
        module = next(calls_of_modules(), None)
        site = LOOP if module is None else self._sites.names[self._sites.of_module(module, 0)]
        place = self._sources.here()
        return site, self._sources.lines[place] if place >= 0 else None


class _Keeper(_Forward):
    """Keeps what every op of the plain batch computes."""

    def __init__(self, step: ReplayedStep) -> None:
        super().__init__(step)
        self.ops: list[_KeptOp] = []

    def _see(self, name: str, results: list[Tensor]) -> None:
        self.ops.append(_KeptOp(name, *self._place(), [x.detach().clone() for x in results]))


class _Comparer(_Forward):
    """Compares what every op computes for the sample, and gives the next ones what it was in the plain batch."""

    def __init__(self, step: ReplayedStep, kept: Sequence[_KeptOp], take: _Take) -> None:
        super().__init__(step)
        self.varying: list[VaryingOp] = []
        self.num_compared = 0
        self._kept = kept
        self._take = take
        self._number = 0

    def _see(self, name: str, results: list[Tensor]) -> None:
        number, self._number = self._number, self._number + 1
        kept = self._kept[number] if number < len(self._kept) else None
        if kept is None or kept.name != name or len(kept.results) != len(results):
            site, source = self._place()
            self.why_stopped = f"it takes another course from {name} on, in {site}" + (f", {source}" if source else "")
            self._is_following = False
            return
        for place, (before, now) in enumerate(zip(kept.results, results, strict=True)):
            pair = self._take(before, now, number, place) if before.dtype is now.dtype else None
            if pair is None:
                continue
            self.num_compared += 1
            if not same_bits(*pair):
                self.varying.append(_varying(kept, before, *pair))
                pair[1].copy_(pair[0])


def _varying(kept: _KeptOp, whole: Tensor, before: Tensor, now: Tensor) -> VaryingOp:
    return VaryingOp(
        op=kept.name,
        site=kept.site,
        source=kept.source,
        result=f"{str(whole.dtype).removeprefix('torch.')}[{'x'.join(map(str, whole.shape))}]",
        difference=_distance(before, now),
    )


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    a, b = (x.to(widest_float(x.device)) for x in (a, b))
    return float((a - b).abs().nan_to_num(nan=math.inf).max()) / (float(a.abs().max()) or 1.0)
