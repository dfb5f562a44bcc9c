"""The rule for infinities that nobody sees: divided by, they leave a 0 where a number should be."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from roundoff.diagnose.flow import recorded_steps
from roundoff.diagnose.nonfinite.origin import roots_without_effect
from roundoff.diagnose.nonfinite.provenance import Provenance, Root
from roundoff.diagnose.wording import FORMATS, format_of, format_short, format_whole, largest_of
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.records.step_ops import StepOp, bare_name, ops_of
from roundoff.words import plural

_GROW = frozenset(
    {
        "pow", "mul", "square", "sum", "mean", "add", "addcmul", "cumsum", "prod", "var", "std", "var_mean", "dot",
        "linalg_vector_norm", "norm", "mm", "bmm", "addmm", "baddbmm", "mv", "convolution", "_to_copy", "copy",
    }
)  # fmt: skip
"""Ops whose infinity is a number too large for its format; that of exp or of 1/x may be as good as right."""
_DIVIDE = ("div", "reciprocal", "rsqrt")


def consumed_overflows(run: Run) -> list[Finding]:
    """Find the first op of each rank whose infinity is divided away, so that neither loss nor gradients show it."""
    return [finding for rank in run.ranks for finding in _of_rank(run, rank)[:1]]


def _of_rank(run: Run, rank: int) -> list[Finding]:
    found = []
    for step, events in recorded_steps(run):
        if _has_infinity(events, step, rank):
            ops = ops_of(event for event in events.iter_events(step=step, rank=rank) if event.phase != "eval")
            provenance = Provenance(ops)
            for root in roots_without_effect(ops, provenance):
                divider = _divider(root, ops, provenance)
                if divider is not None:
                    found.append(_finding(root, divider))
    return found


def _has_infinity(run: Run, step: int, rank: int) -> bool:
    table = run.events(step=step, rank=rank, phase="forward", columns=["num_posinf"])
    return bool(pc.any(pc.greater(table["num_posinf"], 0)).as_py())


def _divider(root: Root, ops: Sequence[StepOp], provenance: Provenance) -> StepOp | None:
    """Return the op that makes something finite of a root's infinity by dividing by it; None if none does."""
    bad = root.bad
    if root.kind != "op" or bad.phase != "forward" or not bad.num_posinf or bare_name(bad.op) not in _GROW:
        return None
    for op in ops:
        if op.first.phase == "forward" and op.inputs and op.outputs and any(word in op.bare for word in _DIVIDE):
            divisor, result = op.inputs[-1], op.outputs[0]
            if bad.order in provenance.roots_of(divisor) and not result.num_nonfinite and result.num_zero:
                return op
    return None


def _finding(root: Root, divider: StepOp) -> Finding:
    bad, result = root.bad, divider.outputs[0]
    name = format_of(bad.dtype)
    limit = format_whole(largest_of(name)) if name in FORMATS.values() else "its largest number"
    reach = max((x.absmax for x in root.inputs if x.absmax == x.absmax), default=0.0)
    return Finding(
        rule="consumed-overflow",
        severity=Severity.ERROR,
        confidence=0.95,
        step=bad.step,
        rank=bad.rank,
        phase="forward",
        site=bad.site,
        op=bad.op_name,
        source=bad.source,
        title=f"{name} {bare_name(bad.op).strip('_')} overflowed, and its infinity was divided away",
        why=f"its inputs reach {format_short(reach)}, and {bad.num_posinf} of "
        f"{plural(bad.num_elements, 'result')} are beyond "
        f"{limit}; {result.op_name} in {result.site} divides by them, which leaves {result.num_zero} of "
        f"{result.num_elements} numbers 0. No NaN shows, and nothing is learnt through them",
        fix=f"compute it in fp32, x.float(), from {bad.source or bad.op_name} to {result.source or result.op_name}\n"
        "or scale the inputs before they are multiplied or added up: divide by their largest magnitude first",
        evidence=(
            {"absmax_of_inputs": reach, "infinite": bad.num_posinf, "of": bad.num_elements, "dtype": bad.dtype},
            {"divided_by_in": f"{result.site} / {result.op_name}", "zero": result.num_zero, "of": result.num_elements},
        ),
    )
