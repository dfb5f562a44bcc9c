"""Numbers that rounding ruins: subtractions that leave only rounding errors, and ids cast to narrow floats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, on_each_rank, on_first_rank, place_of, rule
from roundoff.diagnose.step_flow import Flow, mean_magnitude, recorded_steps
from roundoff.diagnose.wording import FORMATS, eps_of, format_short
from roundoff.runs import BatchFacts, Event, Finding, Run, TensorFacts
from roundoff.runs.records.event import NAMED, StepOp, ops_of

_DIFFERENCES = ("sub", "rsub", "add", "addcmul")
_FEW_ULPS = 8.0
"""A mean result below this many ulps of its operands consists of their rounding errors."""
_MORE, _MUCH_MORE = 10.0, 1e4
"""A square root, or a product with a constant, that is this many times its argument amplifies it."""
_COPIES = frozenset({"_to_copy", "clone", "copy", "index", "index_select", "embedding"})
_PASSING = frozenset(
    {"add", "sub", "clamp", "clamp_min", "relu", "abs", "maximum", "neg", "_to_copy", "clone", "mul", "sum", "mean"}
)
_SENSITIVE = ("sqrt", "rsqrt", "reciprocal", "log", "pow")


@rule(
    Code(
        name="cancellation",
        means="Two nearly equal numbers were subtracted. The result consists mostly of their rounding errors, and a "
        "square root or a quotient amplifies it.",
        fix="Rearrange the computation: subtract the mean before squaring, use `x.var()`, or compute both operands in "
        "fp64.",
    ),
    order=920,
    checks="subtractions that leave only rounding errors",
    needs=[needs.recorded_steps],
)
@on_each_rank
def cancellations(run: Run, rank: int) -> list[Finding]:
    """Find the first subtraction of each rank that leaves rounding errors which a square root or quotient amplifies.

    Subtracting close numbers is exact, so no reference run shows an error: what counts is how much smaller the result
    is than its operands. Differences that stay small do no harm.
    """
    found: list[Finding] = []
    for step, events in recorded_steps(run):
        if _has_differences(events, step, rank):
            flow = Flow(ops_of(events.iter_events(step=step, rank=rank, phase="forward")))
            found.extend(_cancellation_finding(op, reader) for op, reader in _cancelling(flow))
    return found


def _has_differences(run: Run, step: int, rank: int) -> bool:
    table = run.events(step=step, rank=rank, phase="forward", columns=["op"])
    return not {f"aten.{name}{mark}" for name in _DIFFERENCES for mark in ("", "_")}.isdisjoint(table["op"].unique())


def _cancelling(flow: Flow) -> Iterator[tuple[StepOp, StepOp]]:
    for op in flow.ops:
        if op.bare in _DIFFERENCES and _leaves_rounding_errors(op) and all(_is_computed(flow, x) for x in op.inputs):
            reader = flow.first_reader(op.outputs[0], wanted=_amplifies, passing=_PASSING)
            if reader is not None:
                yield op, reader


def _leaves_rounding_errors(op: StepOp) -> bool:
    if len(op.inputs) < 2 or not op.outputs or op.outputs[0].dtype not in FORMATS:
        return False
    result, sizes = op.outputs[0], [mean_magnitude(x) for x in op.inputs]
    if any(x.dtype != result.dtype or x.num_nonfinite for x in op.inputs) or result.num_zero == result.num_elements:
        return False
    return sizes[0] > 0 and mean_magnitude(result) < _FEW_ULPS * eps_of(result.dtype) * sizes[0]


def _is_computed(flow: Flow, event: Event) -> bool:
    """Say whether arithmetic computed a tensor: only then does it have rounding errors."""
    maker = flow.maker_of(event)
    return maker is not None and maker.first.op not in NAMED and maker.bare not in _COPIES


def _amplifies(op: StepOp, tensor: Event) -> bool:
    """Say whether an op divides by the tensor, or makes it much larger."""
    if not op.outputs:
        return False
    if op.bare == "div" and len(op.inputs) > 1 and op.inputs[-1].hash == tensor.hash:
        return True
    growth = mean_magnitude(op.outputs[0]) / max(mean_magnitude(tensor), 1e-300)
    return growth > (_MORE if op.bare in _SENSITIVE else _MUCH_MORE) and op.bare in (*_SENSITIVE, "div", "mul")


def _cancellation_finding(op: StepOp, reader: StepOp) -> Finding:
    result = op.outputs[0]
    operands, left = mean_magnitude(op.inputs[0]), mean_magnitude(result)
    times = operands / left
    return error(
        rule="cancellation",
        confidence=0.9,
        **place_of(result),
        title="a subtraction leaves only rounding errors",
        why=f"its operands are about {format_short(operands)}, their difference about {format_short(left)}: the "
        f"relative rounding error of {FORMATS[result.dtype]}, {format_short(eps_of(result.dtype) / 2)}, becomes "
        f"{format_short(times)} times as large in the result; {reader.first.op_name} in {reader.first.site} then "
        "amplifies it",
        fix="for a variance, subtract the mean before squaring: (x - x.mean()).square().mean(), or x.var(); "
        "otherwise rearrange the difference, or compute both operands in fp64",
        evidence=({"operands": operands, "difference": left, "amplification": times, "dtype": result.dtype},),
    )


_LARGEST_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}
"""Up to here the format represents every integer."""
_MIN_VALUES = 12
"""It is no accident if this many different ids are all representable in a narrow format."""
_LOOK_UP = ("embedding", "index", "index_select", "gather", "nll_loss_forward", "one_hot", "scatter")


@rule(
    Code(
        name="ids-through-float",
        means="Integers, such as token ids, passed through a format that rounds them: above 2048, fp16 represents only "
        "every second one. The model reads different tokens from those in the text.",
        fix="Keep ids in an integer dtype; cast only tensors with `x.is_floating_point()`.",
        follows_from=("positions-rounded",),
    ),
    order=930,
    checks="integer ids converted to a narrow float format",
    needs=[needs.recorded_steps],
)
@on_first_rank
def ids_through_float(run: Run, rank: int) -> list[Finding]:
    """Find ids that were rounded by a cast, from the casts of a recorded step or from the values that are left."""
    found = [*_find_by_casts(run, rank), *_find_by_values(run, rank)]
    if found:
        return found[:1]
    return []


def _find_by_casts(run: Run, rank: int) -> Iterator[Finding]:
    for step, events in recorded_steps(run):
        names = events.events(step=step, rank=rank, columns=["dtype"])["dtype"].unique()
        if not set(names).intersection(("float16", "bfloat16", "float32")) or "int64" not in names:
            continue
        flow = Flow(ops_of(events.iter_events(step=step, rank=rank, phase="forward")))
        for op in flow.ops:
            if op.bare == "_to_copy" and op.inputs and op.outputs and "int" in op.outputs[0].dtype:
                found = _judge_cast_back(flow, op)
                if found is not None:
                    yield found


def _judge_cast_back(flow: Flow, back: StepOp) -> Finding | None:
    """Judge a cast to integers by the cast that its argument came from, or else by its size alone."""
    rounded = back.inputs[0]
    limit = _LARGEST_EXACT.get(rounded.dtype)
    if limit is None:
        return None
    maker = flow.maker_of(rounded)
    if maker is not None and maker.bare == "_to_copy" and maker.inputs and "int" in maker.inputs[0].dtype:
        ids = maker.inputs[0]
        is_lossy = ids.absmax > limit and (ids.sum_abs, ids.l2) != (rounded.sum_abs, rounded.l2)
        return _ids_finding(maker.outputs[0], ids.absmax, rounded.dtype) if is_lossy else None
    is_looked_up = any(reader.bare in _LOOK_UP for reader in flow.readers_of(back.outputs[0]))
    if "16" in rounded.dtype and rounded.absmax > limit and is_looked_up and maker is None:
        return _ids_finding(back.outputs[0], rounded.absmax, rounded.dtype)
    return None


def _find_by_values(run: Run, rank: int) -> Iterator[Finding]:
    """Judge integers that came into the training: a narrow format leaves only multiples of 2, 4, ..."""
    by_place: dict[str, list[TensorFacts]] = {}
    batches: Sequence[BatchFacts] = run.inputs(rank=rank)
    for batch in batches:
        for tensor in batch.tensors:
            if "int" in tensor.dtype and tensor.counts:
                by_place.setdefault(tensor.place, []).append(tensor)
    for place, tensors in by_place.items():
        values = {int(value) for tensor in tensors for value in tensor.counts}
        dtype = _rounding_dtype(values)
        event = _look_up(run, rank, tensors) if dtype is not None else None
        if dtype is not None and event is not None:
            yield _ids_finding(event, max(values), dtype, place=place)


def _rounding_dtype(values: set[int]) -> str | None:
    """Return the narrow dtype that represents all these values, though not all integers of their size; or None."""
    for dtype in ("bfloat16", "float16"):
        limit = _LARGEST_EXACT[dtype]
        large = [abs(value) for value in values if abs(value) > limit]
        if len(large) >= _MIN_VALUES and all(
            value % (1 << (value.bit_length() - limit.bit_length() + 1)) == 0 for value in large
        ):
            return dtype
    return None


def _look_up(run: Run, rank: int, tensors: Sequence[TensorFacts]) -> Event | None:
    """Return the input of a recorded op that uses one of these tensors as an index; None if none does."""
    hashes = {int(tensor.hash, 16) for tensor in tensors if tensor.hash}
    for step, events in recorded_steps(run):
        for event in events.iter_events(step=step, rank=rank, phase="forward"):
            if event.hash in hashes and event.output.startswith("input") and event.op.partition(".")[2] in _LOOK_UP:
                return event
    return None


def _ids_finding(event: Event, largest: float, dtype: str, *, place: str | None = None) -> Finding:
    name, limit = FORMATS[dtype], _LARGEST_EXACT[dtype]
    if place is None:
        seen = f"the largest id is {largest:.0f}"
    else:
        seen = f"the largest id is {largest:.0f}, and {name} represents all ids above {limit} in {place}"
    return error(
        rule="ids-through-float",
        confidence=0.95 if place is None else 0.85,
        **place_of(event),
        title=f"ids were rounded to {name}",
        why=f"{name} represents every integer only up to {limit}: {limit + 1} is the first that changes; {seen}",
        fix="keep ids in an integer dtype: cast only tensors with x.is_floating_point()",
        evidence=({"largest_id": largest, "first_wrong": limit + 1, "dtype": dtype},),
    )
