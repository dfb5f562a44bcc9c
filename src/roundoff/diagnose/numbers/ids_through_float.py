"""Integer ids that were converted to a float format too narrow for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.flow import Flow, recorded_steps
from roundoff.diagnose.rule import Code, Rule
from roundoff.diagnose.wording import FORMATS
from roundoff.runs import BatchFacts, Event, Finding, Run, Severity, TensorFacts
from roundoff.runs.records.step_ops import StepOp, ops_of

_LARGEST_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24}
"""Up to here the format represents every integer."""
_MIN_VALUES = 12
"""It is no accident if this many different ids are all representable in a narrow format."""
_LOOK_UP = ("embedding", "index", "index_select", "gather", "nll_loss_forward", "one_hot", "scatter")


def ids_through_float(run: Run) -> list[Finding]:
    """Find ids that were rounded by a cast, from the casts of a recorded step or from the values that are left."""
    for rank in run.ranks:
        found = [*_find_by_casts(run, rank), *_find_by_values(run, rank)]
        if found:
            return found[:1]
    return []


def _find_by_casts(run: Run, rank: int) -> Iterator[Finding]:
    for step, events in recorded_steps(run):
        names = events.events(step=step, rank=rank, columns=["dtype"])["dtype"].unique().to_pylist()
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
        return _finding(maker.outputs[0], ids.absmax, rounded.dtype) if is_lossy else None
    is_looked_up = any(reader.bare in _LOOK_UP for reader in flow.readers_of(back.outputs[0]))
    if "16" in rounded.dtype and rounded.absmax > limit and is_looked_up and maker is None:
        return _finding(back.outputs[0], rounded.absmax, rounded.dtype)
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
            yield _finding(event, max(values), dtype, place=place)


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


def _finding(event: Event, largest: float, dtype: str, *, place: str | None = None) -> Finding:
    name, limit = FORMATS[dtype], _LARGEST_EXACT[dtype]
    if place is None:
        seen = f"the largest id is {largest:.0f}"
    else:
        seen = f"the largest id is {largest:.0f}, and {name} represents all ids above {limit} in {place}"
    return Finding(
        rule="ids-through-float",
        severity=Severity.ERROR,
        confidence=0.95 if place is None else 0.85,
        step=event.step,
        rank=event.rank,
        phase="forward",
        site=event.site,
        op=event.op_name,
        source=event.source,
        title=f"ids were rounded to {name}",
        why=f"{name} represents every integer only up to {limit}: {limit + 1} is the first that changes; {seen}",
        fix="keep ids in an integer dtype: cast only tensors with x.is_floating_point()",
        evidence=({"largest_id": largest, "first_wrong": limit + 1, "dtype": dtype},),
    )


RULES = (
    Rule(
        order=930,
        checks="integer ids converted to a narrow float format",
        find=ids_through_float,
        needs=(needs.recorded_steps,),
        codes=(
            Code(
                name="ids-through-float",
                means="Integers, such as token ids, passed through a format that rounds them: above 2048, fp16 "
                "represents only every second one. The model reads different tokens from those in the text.",
                fix="Keep ids in an integer dtype; cast only tensors with `x.is_floating_point()`.",
            ),
        ),
    ),
)
