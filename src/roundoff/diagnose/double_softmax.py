"""The rule for probabilities that go into a loss which takes logits."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.layers import first_rank, forward_ops
from roundoff.runs import Finding, Run, Severity
from roundoff.runs.step_ops import StepOp

_TAKES_LOGITS = ("cross_entropy", "CrossEntropyLoss")


def doubled_softmax(run: Run) -> list[Finding]:
    """Find a softmax whose result goes through another one in the loss."""
    pair = next((pair for pair in _pairs(forward_ops(run))), None)
    rows = [facts for facts in run.inputs(rank=first_rank(run)) if facts.criterion in _TAKES_LOGITS]
    seen = [facts for facts in rows if facts.num_classes is not None and facts.num_classes > 1]
    sums_to_one = len(seen) >= 2 and all(facts.rows_sum_to_one for facts in seen)
    if pair is None and not sums_to_one:
        return []
    softmax = None if pair is None else pair[0].first
    return [
        Finding(
            rule="double-softmax",
            severity=Severity.ERROR,
            confidence=0.98 if pair is not None and sums_to_one else 0.95,
            step=0,
            phase="forward",
            site=None if softmax is None else softmax.site,
            op=None if softmax is None else softmax.op_name,
            source=None if softmax is None else softmax.source,
            title="softmax is applied twice",
            why="the rows that go into the cross entropy add up to 1 already; it takes them for logits, so that the "
            "loss cannot come near 0 and its gradients are small",
            fix="give the loss the values before the softmax; keep the softmax for predictions",
            evidence=({"steps_with_rows_that_sum_to_one": len(seen) if sums_to_one else 0},),
        )
    ]


def _pairs(ops: Sequence[StepOp]) -> list[tuple[StepOp, StepOp]]:
    """Return softmax and log_softmax where one reads exactly what the other made."""
    made = {op.outputs[0].hash: op for op in ops if op.bare == "_softmax" and op.outputs[0].num_elements > 1}
    found = []
    for op in ops:
        if op.bare == "_log_softmax" and op.inputs and op.inputs[0].hash in made:
            found.append((made[op.inputs[0].hash], op))
    return found
