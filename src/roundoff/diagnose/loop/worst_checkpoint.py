"""A checkpoint that is kept when the evaluation is at its worst: the comparison is the wrong way round."""

from __future__ import annotations

import math

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, Run
from roundoff.words import plural

_MIN_EVALUATIONS, _MIN_PASSED_OVER = 4, 2


@rule(
    Code(
        name="worst-checkpoint-kept",
        means="The model is saved when its evaluation loss is highest, not when it is lowest: the comparison with the "
        "best one so far is the wrong way round, or starts from the wrong number.",
        fix="Start from infinity and save if the loss is lower: `best = float('inf')`, `if loss < best`.",
    ),
    order=268,
    checks="which evaluations lead to a checkpoint",
    needs=[needs.calls("save", missing="no checkpoint was saved")],
)
@on_first_rank
def worst_kept(run: Run, rank: int) -> Finding | None:
    """Find saves that follow each highest evaluation loss so far, and no lowest one.

    A single save, after the first evaluation, counts if the script reads or loads a state after its last step.
    """
    calls, metrics = run.calls(rank=rank), run.metrics(rank=rank)
    evaluated = [(m.step, m.eval_loss) for m in metrics if m.eval_loss is not None and math.isfinite(m.eval_loss)]
    saved = {call.step for call in calls if call.call == "save"}
    losses = [loss for _, loss in evaluated]
    if len(evaluated) < _MIN_EVALUATIONS or not saved or not saved <= {step for step, _ in evaluated}:
        return None
    highest = [step for place, (step, loss) in enumerate(evaluated) if loss > max(losses[:place], default=-math.inf)]
    lowest = [step for place, (step, loss) in enumerate(evaluated) if loss < min(losses[:place], default=math.inf)]
    passed_over = [step for step in lowest if step not in saved]
    last = max(call.step for call in calls if call.call == "step") if any(c.call == "step" for c in calls) else 0
    is_loaded = any(call.call in ("read", "load") and call.step >= last for call in calls)
    if saved != set(highest) or len(passed_over) < _MIN_PASSED_OVER or (len(saved) < 2 and not is_loaded):
        return None
    kept = dict(evaluated)[max(saved)]
    return warning(
        rule="worst-checkpoint-kept",
        confidence=0.9,
        step=max(saved),
        rank=rank,
        title="the checkpoint is that of the worst evaluation, not of the best",
        why=f"of {plural(len(evaluated), 'evaluation')}, a checkpoint was saved after {plural(len(saved), 'one')}: "
        f"each time that the loss was higher than ever before, and at none of the {len(passed_over)} times that it was "
        f"lower; the last one was saved at a loss of {format_short(kept)}, while the lowest was "
        f"{format_short(min(losses))}",
        fix="compare the other way round and start from infinity: best = float('inf'); if loss < best: save",
        evidence=({"saved": sorted(saved), "lowest": lowest[-5:]},),
    )
