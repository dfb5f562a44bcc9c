"""Subtractions that leave only rounding errors, which a later op amplifies."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from roundoff.diagnose import needs
from roundoff.diagnose.flow import Flow, mean_magnitude, recorded_steps
from roundoff.diagnose.rule import Code, Rule
from roundoff.diagnose.wording import FORMATS, eps_of, format_short
from roundoff.runs import Event, Finding, Run, Severity
from roundoff.runs.records.step_ops import NAMED, StepOp, ops_of

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


def cancellations(run: Run) -> list[Finding]:
    """Find the first subtraction of each rank that leaves rounding errors which a square root or quotient amplifies.

    Subtracting close numbers is exact, so no reference run shows an error: what counts is how much smaller the result
    is than its operands. Differences that stay small do no harm.
    """
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)[:1]]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    found: list[Finding] = []
    for step, events in recorded_steps(run):
        if _has_differences(events, step, rank):
            flow = Flow(ops_of(events.iter_events(step=step, rank=rank, phase="forward")))
            found.extend(_finding(op, reader) for op, reader in _cancelling(flow))
    return found


def _has_differences(run: Run, step: int, rank: int) -> bool:
    table = run.events(step=step, rank=rank, phase="forward", columns=["op"])
    names = [f"aten.{name}{mark}" for name in _DIFFERENCES for mark in ("", "_")]
    return bool(pc.any(pc.is_in(table["op"], value_set=pa.array(names))).as_py())


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


def _finding(op: StepOp, reader: StepOp) -> Finding:
    result = op.outputs[0]
    operands, left = mean_magnitude(op.inputs[0]), mean_magnitude(result)
    times = operands / left
    return Finding(
        rule="cancellation",
        severity=Severity.ERROR,
        confidence=0.9,
        step=result.step,
        rank=result.rank,
        phase=result.phase,
        site=result.site,
        op=result.op_name,
        source=result.source,
        title="a subtraction leaves only rounding errors",
        why=f"its operands are about {format_short(operands)}, their difference about {format_short(left)}: the "
        f"relative rounding error of {FORMATS[result.dtype]}, {format_short(eps_of(result.dtype) / 2)}, becomes "
        f"{format_short(times)} times as large in the result; {reader.first.op_name} in {reader.first.site} then "
        "amplifies it",
        fix="for a variance, subtract the mean before squaring: (x - x.mean()).square().mean(), or x.var(); "
        "otherwise rearrange the difference, or compute both operands in fp64",
        evidence=({"operands": operands, "difference": left, "amplification": times, "dtype": result.dtype},),
    )


RULES = (
    Rule(
        order=920,
        checks="subtractions that leave only rounding errors",
        find=cancellations,
        needs=(needs.recorded_steps,),
        codes=(
            Code(
                name="cancellation",
                means="Two nearly equal numbers were subtracted. The result consists mostly of their rounding errors, "
                "and a square root or a quotient amplifies it.",
                fix="Rearrange the computation: subtract the mean before squaring, use `x.var()`, or compute both "
                "operands in fp64.",
            ),
        ),
    ),
)
