"""Whether runs on different numbers of ranks put their gradients together alike: averaged, or summed."""

from __future__ import annotations

import math
import statistics

from roundoff.compare.divergence import Divergence
from roundoff.compare.explained import unit_of
from roundoff.runs import Run

FAR = 1.3
"""Gradients of one batch, divided over other ranks, are not so many times larger or smaller; sums are, by the ranks."""


def differing_aggregation(reference: Run, candidate: Run) -> Divergence | None:
    """Return that gradients are larger by a factor, if they are in most parameters of the first watched step.

    Each rank computes with a part of the batch, so that no result of a forward or backward pass can be compared; what
    the optimizer gets must be the same again, whatever the number of ranks.
    """
    if reference.info.ranks == candidate.info.ranks:
        return None
    ours, theirs = _gradients(reference), _gradients(candidate)
    ratios = [theirs[name] / norm for name, norm in ours.items() if norm and theirs.get(name)]
    if not ratios:
        return None
    ratio = statistics.median(ratios)
    if not ratio or abs(math.log(ratio)) < math.log(FAR):
        return None
    relative = abs(ratio - 1) / max(ratio, 1.0)
    return Divergence(
        cause="collective",
        step=0,
        rank=0,
        phase="backward",
        site="<loop>",
        op="gradient",
        parameter=None,
        source=None,
        output="output0",
        format="float32",
        relative=relative,
        introduced_ulps=relative / (2 * unit_of("float32")),
        inherited_ulps=0.0,
        factor=ratio,
    )


def _gradients(run: Run) -> dict[str, float]:
    """Return the norms of gradients as the optimizer first got them, but for those that are next to nothing."""
    table = run.parameters(step=0, rank=0)
    norms = dict(zip(table["parameter"].to_pylist(), table["grad_l2"].to_pylist(), strict=True))
    known = {name: norm for name, norm in norms.items() if norm and math.isfinite(norm)}
    largest = max(known.values(), default=0.0)
    return {name: norm for name, norm in known.items() if norm > 1e-3 * largest}
