"""The layers of a recorded step, in the order of its forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.runs import Event, Finding, JsonValue, ParameterFacts, Run, Severity
from roundoff.runs.records.step_ops import NAMED, StepOp, ops_of

PRODUCTS = frozenset({"mm", "addmm", "convolution", "linear", "mkldnn_linear"})
"""Ops that multiply by a weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A product with a weight: the op that computes it and the weight."""

    op: StepOp
    weight: ParameterFacts

    @property
    def site(self) -> str:
        """The module it belongs to."""
        return self.op.first.site

    @property
    def result(self) -> Event:
        """The output."""
        return self.op.outputs[0]


def finding_at(
    layer: Layer,
    rule: str,
    *,
    title: str,
    why: str,
    fix: str,
    evidence: tuple[JsonValue, ...],
    confidence: float = 0.95,
    phase: str = "forward",
) -> Finding:
    """Return an error about a layer in the first step, located at the layer; a finding in backward names no op."""
    return Finding(
        rule=rule,
        severity=Severity.ERROR,
        confidence=confidence,
        step=0,
        phase=phase,
        site=layer.site,
        op=layer.result.op_name if phase == "forward" else None,
        parameter=layer.weight.name,
        source=layer.result.source,
        title=title,
        why=why,
        fix=fix,
        evidence=evidence,
    )


def forward_ops(run: Run, *, step: int = 0) -> list[StepOp]:
    """Return the ops of the first forward of a recorded step, in order; empty if the step was not recorded."""
    events = run.iter_events(step=step, phase="forward", rank=first_rank(run))
    return [op for op in ops_of(e for e in events if e.microbatch == 0) if op.first.op not in NAMED and op.outputs]


def layers_of(run: Run, ops: Sequence[StepOp]) -> list[Layer]:
    """Return the layers that the ops belong to, each once, in order."""
    looks = run.structures(rank=first_rank(run))
    if not looks:
        return []
    weights = {p.site: p for p in reversed(looks[0].parameters) if len(p.shape) >= 2}
    found: dict[str, Layer] = {}
    for op in ops:
        site = op.first.site
        if op.bare in PRODUCTS and site in weights:
            found.setdefault(site, Layer(op=op, weight=weights[site]))
    return list(found.values())


def first_rank(run: Run) -> int:
    """Return the rank to look at if all ranks are alike: the first that left files."""
    return min(run.ranks, default=0)


def root_mean_square(event: Event) -> float:
    """Return the root mean square of a tensor's elements."""
    return event.l2 / math.sqrt(max(event.num_elements, 1))
