"""The origin of NaN and infinity: the first op that made them out of finite numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from roundoff.formats import format_named
from roundoff.runs import Event, Finding, Run, Severity

_FORMATS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_MASKS = ("aten.masked_fill", "aten.masked_fill_", "aten.where", "aten.full", "aten.full_like", "aten.fill_")
_HAVE_A_DOMAIN = ("log", "sqrt", "pow", "acos", "asin", "atanh", "softmax")
_DIVIDE = ("div", "reciprocal", "rsqrt")


def first_nonfinite(run: Run) -> Finding | None:
    """Return the earliest recorded op that made NaN or infinity out of finite inputs, or None.

    A mask's -inf is no error. The inputs of each op must have been recorded (`inputs=True`) to be sure; without them
    the first op with a bad output is named, with less confidence.
    """
    step = _first_bad_step(run)
    if step is None:
        return None
    ops: dict[tuple[object, ...], list[Event]] = {}
    for event in sorted(run.iter_events(step=step), key=lambda event: event.order):
        ops.setdefault((event.rank, event.microbatch, event.phase, event.site, event.op_name), []).append(event)
    for group in ops.values():
        inputs = [event for event in group if event.output.startswith("input")]
        outputs = [event for event in group if event.output.startswith("output")]
        bad = next((event for event in outputs if _is_bad(event)), None)
        if bad is not None and not any(event.num_nan or event.num_posinf for event in inputs):
            return _describe(bad, inputs)
    return None


def _first_bad_step(run: Run) -> int | None:
    table = run.events(columns=["step", "op", "output", "num_nan", "num_posinf", "num_neginf"])
    is_mask = pc.is_in(table["op"], value_set=pa.array(_MASKS))
    is_output = pc.starts_with(table["output"], "output")
    worse = pc.greater(pc.add(table["num_nan"], table["num_posinf"]), 0)
    negative = pc.and_(pc.greater(table["num_neginf"], 0), pc.invert(is_mask))
    steps = table.filter(pc.and_(is_output, pc.or_(worse, negative)))["step"]
    return int(pc.min(steps).as_py()) if len(steps) else None


def _is_bad(event: Event) -> bool:
    return event.num_nonfinite > (event.num_neginf if event.op in _MASKS else 0)


def _describe(bad: Event, inputs: Sequence[Event]) -> Finding:
    bare = bad.op.partition(".")[2].strip("_")
    format_name = _FORMATS.get(bad.dtype, bad.dtype)
    is_domain = _left_its_domain(bad, bare, inputs)
    rule = "domain-error" if is_domain else "overflow"
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        confidence=0.95 if inputs else 0.7,
        step=bad.step,
        rank=bad.rank,
        phase=bad.phase,
        site=bad.site,
        op=bad.op_name,
        parameter=bad.parameter,
        source=bad.source,
        title=f"{bare} left its domain" if is_domain else f"{format_name} {bare} overflowed",
        why=_why(bad, inputs, format_name, is_domain=is_domain),
        fix=_fix(bad, bare, format_name, is_domain=is_domain),
        evidence=tuple(
            {"tensor": event.output, "absmax": event.absmax, "nonfinite": event.num_nonfinite, "dtype": event.dtype}
            for event in (*inputs, bad)
        ),
    )


def _left_its_domain(bad: Event, bare: str, inputs: Sequence[Event]) -> bool:
    """Tell log(-1) and 0/0 from results that are merely too large; NaN inside a product is inf - inf."""
    if any(word in bare for word in _DIVIDE):
        return bad.num_nan > 0 or not inputs or inputs[-1].num_zero > 0
    return "log" in bare or (bad.num_nan > 0 and any(word in bare for word in _HAVE_A_DOMAIN))


def _why(bad: Event, inputs: Sequence[Event], format_name: str, *, is_domain: bool) -> str:
    share = f"{bad.num_nonfinite} of {bad.num_elements} results are not finite"
    reach = max((event.absmax for event in inputs if event.num_elements), default=None)
    told = f"its inputs are finite and reach {reach:.2g}; " if reach is not None else ""
    if is_domain:
        return f"{told}{share}, and no wider format would help"
    return f"{told}the result is beyond {format_name}'s largest number {_largest(format_name)}: {share}"


def _fix(bad: Event, bare: str, format_name: str, *, is_domain: bool) -> str:
    if is_domain:
        return f"keep the argument of {bare} inside its domain: clamp it, add an eps, or use a fused form"
    return (
        f"scale the inputs of {bare} down first, or keep {bad.site} in a format that reaches further than {format_name}"
    )


def _largest(format_name: str) -> str:
    return f"{format_named(format_name).largest:.6g}" if format_name in _FORMATS.values() else "?"
