"""The rule for accumulated gradients whose losses were not divided by their number."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.loop_calls import loop_steps, told_once
from roundoff.diagnose.loss_gradient import loss_gradient, microbatches
from roundoff.diagnose.numbers import plural, short
from roundoff.runs import Call, Event, Finding, Run, Severity
from roundoff.runs.step_ops import bare_name

_FEW = 3
"""Fewer losses than this may be parts of one, as those of a discriminator are, unless they have labels of classes."""
_UNDIVIDED = 0.99
_TOLERANCE = 1e-3


def undivided_losses(run: Run) -> list[Finding]:
    """Find steps that add up the gradients of several batches; several losses of one batch are wanted."""
    return told_once(run, _of_rank)


def _of_rank(run: Run, rank: int) -> list[Finding]:
    for loop_step in loop_steps(run, rank)[:2]:
        if not loop_step.named("step") or any(map(_is_by_hand, loop_step.named("backward"))):
            continue
        parts = [part for part in microbatches(run, rank, loop_step.step) if any(e.phase == "backward" for e in part)]
        if len(parts) < 2 or not _are_batches(parts):
            continue
        scale = next((m.loss_scale for m in run.metrics(rank=rank) if m.step == loop_step.step), None) or 1.0
        factors = [found.factor / scale for part in parts if (found := loss_gradient(part)) is not None]
        is_undivided = len(factors) == len(parts) and all(factor >= _UNDIVIDED for factor in factors)
        if is_undivided and not _divides_gradients(run, rank, loop_step.step, len(parts)):
            return [_finding(loop_step.step, len(parts), factors[0], rank)]
    return []


def _is_by_hand(backward: Call) -> bool:
    """Say whether the loop asked for gradients by autograd.grad: it does with them as it likes."""
    return bool(backward.detail.get("returns_gradients")) and not backward.detail.get("is_part_of_forward")


def _divides_gradients(run: Run, rank: int, step: int, number: int) -> bool:
    """Say whether the loop divides the gradients themselves before the step."""
    before: dict[tuple[str, str | None], float] = {}
    for event in run.iter_events(step=step, rank=rank, phase="optimizer"):
        if bare_name(event.op).removeprefix("_foreach_") not in ("div", "mul") or event.parameter is None:
            continue
        key = (event.op_name, event.parameter)
        if event.output.startswith("input"):
            before.setdefault(key, event.l2)
        elif before.get(key) and abs(event.l2 * number / before[key] - 1) < _TOLERANCE:
            return True
    return False


def _are_batches(parts: Sequence[Sequence[Event]]) -> bool:
    """Say whether microbatches do the same with different inputs."""
    in_model = [[e for e in part if e.phase == "forward" and e.site != "<loop>"] for part in parts]
    ops = [[e.op_name for e in part if e.op.startswith("aten.")] for part in in_model]
    inputs = [[e.hash for e in part if e.op == "input" and e.num_elements > 1] for part in parts]
    firsts = {found[0] for found in inputs if found}
    is_repeated = len({len(found) for found in ops}) == 1 and len(firsts) == len(parts)
    return is_repeated and (len(parts) >= _FEW or all(map(_has_class_labels, parts)))


def _has_class_labels(part: Sequence[Event]) -> bool:
    """Say whether a microbatch has targets of several classes."""
    targets = [e for e in part if bare_name(e.op).startswith("nll_loss") and e.output == "input1" and "int" in e.dtype]
    return any(target.min != target.max for target in targets)


def _finding(step: int, number: int, factor: float, rank: int) -> Finding:
    return Finding(
        rule="accumulation-not-averaged",
        severity=Severity.WARNING,
        confidence=0.85,
        step=step,
        rank=rank,
        phase="backward",
        title=f"the gradients of {plural(number, 'batch', 'batches')} are added up, not averaged",
        why=f"step {step} goes backward from {plural(number, 'batch', 'batches')}, each with the factor "
        f"{short(factor)}: its gradient is {number} times the mean, so the right learning rate depends on their number",
        fix=f"divide each loss: (loss / {number}).backward()",
        evidence=({"num_backwards": number, "factor": factor},),
    )
