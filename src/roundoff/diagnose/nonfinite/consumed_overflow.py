"""Infinities that a division hides: dividing by them gives 0 where a number should be."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose import needs
from roundoff.diagnose.nonfinite.origin import Provenance, Root, roots_without_effect
from roundoff.diagnose.rule import Code, FaultEffect, error, on_each_rank, place_of, rule
from roundoff.diagnose.step_flow import recorded_steps
from roundoff.diagnose.wording import FORMATS, format_of, format_short, format_whole, largest_of
from roundoff.runs import Finding, Run
from roundoff.runs.records.event import StepOp, bare_name, ops_of
from roundoff.words import plural

_GROW = frozenset(
    {
        "pow", "mul", "square", "sum", "mean", "add", "addcmul", "cumsum", "prod", "var", "std", "var_mean", "dot",
        "linalg_vector_norm", "norm", "mm", "bmm", "addmm", "baddbmm", "mv", "convolution", "_to_copy", "copy",
    }
)  # fmt: skip
"""Ops whose infinity means that a number is too large for its format; that of exp or 1/x may be right."""
_DIVIDE = ("div", "reciprocal", "rsqrt")


@rule(
    Code(
        name="consumed-overflow",
        means="An op overflowed, and a later op divided by its infinity, which gives 0. NaN never shows up, but "
        "nothing is learned through these zeros.",
        fix="Compute both ops in fp32, or divide by the largest magnitude before squaring and summing.",
        leads_to=(FaultEffect.STOPS_LEARNING,),
    ),
    order=910,
    checks="infinities hidden by a division",
    needs=[needs.recorded_steps],
)
@on_each_rank
def consumed_overflows(run: Run, rank: int) -> list[Finding]:
    """Find the first op of each rank whose infinity a division hides, so that neither loss nor gradients show it."""
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
    return bool((table.numbers("num_posinf") > 0).any())


def _divider(root: Root, ops: Sequence[StepOp], provenance: Provenance) -> StepOp | None:
    """Return the op that turns a root's infinity into finite values by dividing by it; None if none does."""
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
    return error(
        rule="consumed-overflow",
        confidence=0.95,
        **place_of(bad),
        title=f"{name} {bare_name(bad.op).strip('_')} overflowed, and a division hides its infinity",
        why=f"its inputs reach {format_short(reach)}, and {bad.num_posinf} of {plural(bad.num_elements, 'result')} "
        f"{'exceeds' if bad.num_posinf == 1 else 'exceed'} {limit}; {result.op_name} in {result.site} divides by them, "
        f"which makes {result.num_zero} of {plural(result.num_elements, 'value')} 0. NaN does not show up, but nothing "
        "is learned through these zeros",
        fix=f"compute it in fp32, x.float(), from {bad.source or bad.op_name} to {result.source or result.op_name}\n"
        "or scale the inputs before they are multiplied or summed: divide by their largest magnitude first",
        evidence=(
            {"absmax_of_inputs": reach, "infinite": bad.num_posinf, "of": bad.num_elements, "dtype": bad.dtype},
            {"divided_by_in": f"{result.site} / {result.op_name}", "zero": result.num_zero, "of": result.num_elements},
        ),
    )
