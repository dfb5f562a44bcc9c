"""Norms over too few numbers: their statistics are noise."""

from __future__ import annotations

import math

from roundoff.diagnose.numbers import plural
from roundoff.runs import Event, Finding, Run, Severity

_FEWEST_SAMPLES = 2
_FEWEST_NUMBERS = 4


def tiny_norm_batches(run: Run) -> list[Finding]:
    """Find norms over the batch that take their statistics from two samples, or from a handful of numbers."""
    for rank in run.ranks:
        modules = [module for structure in run.structures(rank=rank) for module in structure.modules]
        norms = {module.site: module.kind for module in modules if module.training and "Norm" in module.kind}
        tiny = [
            [event for event in _norm_events(run, rank, step) if _is_tiny(event, norms.get(event.site))]
            for step in run.steps[:2]
        ]
        if tiny and all(tiny):
            return [_finding(tiny[0], run.steps[0], rank)]
    return []


def _norm_events(run: Run, rank: int, step: int) -> list[Event]:
    events = [event for event in run.iter_events(step=step, rank=rank, phase="forward") if event.output == "output0"]
    return sorted((event for event in events if "batch_norm" in event.op), key=lambda event: event.order)


def _is_tiny(event: Event, kind: str | None) -> bool:
    if kind is None or len(event.shape) < 2:
        return False
    if kind.startswith("InstanceNorm"):  # the samples are channels to the op
        return math.prod(event.shape[2:]) <= _FEWEST_SAMPLES
    return event.shape[0] <= _FEWEST_SAMPLES or _num_numbers(event) <= _FEWEST_NUMBERS


def _num_numbers(event: Event) -> int:
    return event.num_elements // max(event.shape[1], 1)


def _finding(events: list[Event], step: int, rank: int) -> Finding:
    first = events[0]
    sites = list(dict.fromkeys(event.site for event in events))
    more = f" (and {plural(len(sites) - 1, 'more norm')})" if len(sites) > 1 else ""
    return Finding(
        rule="tiny-norm-batch",
        severity=Severity.WARNING,
        confidence=0.85,
        step=step,
        rank=rank,
        phase="forward",
        site=first.site,
        op=first.op_name,
        source=first.source,
        title=f"{first.site} normalises over {plural(first.shape[0], 'sample')}",
        why=f"mean and variance of each channel{more} come from {plural(_num_numbers(first), 'number')} of "
        f"{plural(first.shape[0], 'sample')}: they are noise, and evaluation uses other ones",
        fix="use a larger batch, SyncBatchNorm over several ranks, or a norm that does not look at other samples: "
        "GroupNorm, LayerNorm",
        evidence=({"sites": [*sites], "shape": list(first.shape)},),
    )
