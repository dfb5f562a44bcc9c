"""One tensor seen once, and the ops of a step, put together again from the events they left."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roundoff.runs.files.columns import Rows
from roundoff.runs.files.plain_json import JsonValue

LOOP = "<loop>"
"""The site of code outside any module."""
MODEL = "<model>"
"""The site of the first model's own forward, outside its children."""


class EventKey(NamedTuple):
    """What lines events of two runs up: everything that says which tensor it was, and nothing about its numbers."""

    step: int
    microbatch: int
    rank: int
    phase: str
    site: str
    op: str
    nth: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One tensor seen once, with the numbers that were taken of it; docs/run-folder.md explains every field.

    Fields are the columns of the table, except that `shape` is a tuple and that the sketch and the histogram are
    kept as bytes, with `sketch` and `histogram` giving them as arrays.
    """

    step: int
    rank: int
    microbatch: int
    phase: str
    site: str
    op: str
    nth: int
    output: str
    order: int
    parameter: str | None
    source: str | None
    dtype: str
    shape: tuple[int, ...]
    device: str
    num_elements: int
    min: float
    max: float
    mean: float
    sum_abs: float
    l2: float
    num_nan: int
    num_posinf: int
    num_neginf: int
    num_zero: int
    num_subnormal: int
    hash: int
    sketch_bytes: bytes | None = None
    histogram_bytes: bytes | None = None
    introduced_ulps: float | None = None
    introduced_rms_ulps: float | None = None

    @property
    def key(self) -> EventKey:
        """What the event is compared by."""
        return EventKey(self.step, self.microbatch, self.rank, self.phase, self.site, self.op, self.nth, self.output)

    @property
    def op_name(self) -> str:
        """The op as findings and users write it, `aten.bmm#0`."""
        return f"{self.op}#{self.nth}"

    @property
    def num_inf(self) -> int:
        """How many elements are infinite."""
        return self.num_posinf + self.num_neginf

    @property
    def num_nonfinite(self) -> int:
        """How many elements are NaN or infinite."""
        return self.num_nan + self.num_inf

    @property
    def absmax(self) -> float:
        """The largest absolute value of a finite element; NaN if there is none."""
        return math.nan if math.isnan(self.min) else max(abs(self.min), abs(self.max))

    @property
    def sketch(self) -> npt.NDArray[np.float32] | None:
        """Eight random-sign sums, then their channel-weighted twins; None where it was not taken."""
        return None if self.sketch_bytes is None else np.frombuffer(self.sketch_bytes, dtype="<f4")

    @property
    def histogram(self) -> npt.NDArray[np.uint16] | None:
        """How many elements are in each of the 64 buckets of exponents; None if it was not requested."""
        return None if self.histogram_bytes is None else np.frombuffer(self.histogram_bytes, dtype="<u2")

    def to_object(self) -> dict[str, JsonValue]:
        """Return the event as a JSON object; the hash is in hex, since many parsers round integers above 2**53."""
        value: dict[str, JsonValue] = {name: getattr(self, name) for name in _FIELD_NAMES if "_bytes" not in name}
        sketch, histogram = self.sketch, self.histogram
        return value | {
            "hash": f"{self.hash:016x}",
            "sketch": None if sketch is None else sketch.tolist(),
            "histogram": None if histogram is None else histogram.tolist(),
        }


def shape_to_text(shape: tuple[int, ...]) -> str:
    """Write a shape as the table keeps it.

    >>> shape_to_text((8, 128)), shape_to_text(())
    ('8x128', '')
    """
    return "x".join(map(str, shape))


@functools.lru_cache(maxsize=4096)
def shape_from_text(text: str) -> tuple[int, ...]:
    """Read a shape as the table keeps it."""
    return tuple(map(int, text.split("x"))) if text else ()


def events_of(rows: Rows) -> Iterator[Event]:
    """Yield the rows of a whole events table (every column, and rank) as events."""
    for begin in range(0, rows.num_rows, 8192):
        some = rows.take(slice(begin, begin + 8192))
        columns = [_values(some, field.name) for field in fields(Event)]
        for row in zip(*columns, strict=True):
            yield Event(**dict(zip(_FIELD_NAMES, row, strict=True)))


def _values(rows: Rows, field: str) -> list[Any]:
    values: list[Any] = rows[field.removesuffix("_bytes")].to_list()
    return [shape_from_text(text) for text in values] if field == "shape" else values


_FIELD_NAMES = tuple(field.name for field in fields(Event))


NAMED = ("input", "parameter", "gradient")
"""What takes the place of an op's name for tensors that no op computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOp:
    """One call of an op: what went in and what came out, as far as it was recorded."""

    inputs: list[Event] = field(default_factory=list)
    outputs: list[Event] = field(default_factory=list)

    @property
    def first(self) -> Event:
        """An event with its op, phase and microbatch."""
        return (self.outputs or self.inputs)[0]

    @property
    def bare(self) -> str:
        """The op without namespace and in-place mark: `addcdiv`."""
        return bare_name(self.first.op)

    def inputs_of(self, output: Event) -> Sequence[Event]:
        """Return what went into one result: all inputs, or for a list op those at the same place in their lists."""
        num_lists = len(self.inputs) // max(1, len(self.outputs))
        if not self.bare.startswith("_foreach") or not num_lists:
            return self.inputs
        place, length = self.outputs.index(output), len(self.outputs)
        return [x for i, x in enumerate(self.inputs) if i >= num_lists * length or i % length == place]


def bare_name(op: str) -> str:
    """Return the op without namespace and in-place mark.

    >>> bare_name("aten.addcdiv_"), bare_name("c10d.allreduce_")
    ('addcdiv', 'allreduce')
    """
    return op.partition(".")[2].rstrip("_")


def ops_of(events: Iterable[Event]) -> list[StepOp]:
    """Group the events of one rank's step into ops, in the order they ran; named tensors are ops without inputs.

    Each result of a list op may have a site of its own, so that neighbours in time are what counts, not the key.
    """
    found: list[StepOp] = []
    for event in sorted(events, key=lambda event: event.order):
        is_input = event.output.startswith("input")
        if not found or not _belongs(found[-1], event, is_input=is_input):
            found.append(StepOp())
        (found[-1].inputs if is_input else found[-1].outputs).append(event)
    return found


def _belongs(op: StepOp, event: Event, *, is_input: bool) -> bool:
    first = (op.inputs or op.outputs)[0]
    same = (first.op, first.nth, first.phase, first.microbatch) == (event.op, event.nth, event.phase, event.microbatch)
    if not same:
        return False
    if is_input:
        return not op.outputs and event.output != "input0"
    return event.output not in {other.output for other in op.outputs[:1]}
