"""The rule for losses that grow with the batch."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.diagnose.loss_gradient import microbatches
from roundoff.diagnose.numbers import short
from roundoff.runs import Event, Finding, Run, Severity

_TOLERANCE = 1e-3
_LEAST_LOSS = 1e-12
_NOT_DIVIDED = 1.5
"""The factor on the sum times the number of samples: 1 for a mean."""


def summed_losses(run: Run) -> list[Finding]:
    """Find a loss that is the sum of those of the two halves of its batch, where a mean would be their mean."""
    for probe in run.probes():
        loss, halves = probe.get("loss"), probe.get("halves")
        if probe.get("probe") != "half-batch" or not isinstance(loss, (int, float)) or not isinstance(halves, list):
            continue
        parts = [half for half in halves if isinstance(half, (int, float))]
        if len(parts) != 2 or abs(loss) < _LEAST_LOSS or abs(sum(parts) - loss) > _TOLERANCE * abs(loss):
            continue
        return [] if _is_divided(run) else [_finding(loss, parts, probe.get("step"))]
    return []


def _is_divided(run: Run) -> bool:
    """Say whether the loop divides the sum by itself: by a number, which half of a batch does not halve."""
    parts = microbatches(run, 0, 0)
    factor = _uniform_gradient(parts[0]) if parts else None
    if factor is None:
        return False
    scale = next((metric.loss_scale for metric in run.metrics() if metric.step == 0), None) or 1.0
    sizes = [event.shape[0] for event in parts[0] if event.op == "input" and event.shape]
    return abs(factor) / scale * (sizes[0] if sizes else 2) < _NOT_DIVIDED


def _uniform_gradient(events: Sequence[Event]) -> float | None:
    """Return what backward begins with as long as it is one number, for the loss and then for each sample alike."""
    factor = None
    for event in events:
        if event.phase == "backward" and event.output == "output0":
            if event.min != event.max:
                return factor
            factor = event.min
    return None


def _finding(loss: float, halves: list[float], step: object) -> Finding:
    return Finding(
        rule="loss-sum-reduction",
        severity=Severity.ERROR,
        confidence=0.95,
        step=0,
        rank=0,
        phase="forward",
        title="the loss is a sum over the batch",
        why=f"step {step} again with half of its batch gives {short(halves[0])} and with the other half "
        f"{short(halves[1])}, which add up to its loss {short(loss)}: loss, gradients and the right learning rate all "
        "grow with the batch size",
        fix='divide by the number of samples: reduction="mean", or loss / len(batch)',
        evidence=({"loss": loss, "halves": list(halves)},),
    )
