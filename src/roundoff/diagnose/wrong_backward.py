"""The rule for an autograd function whose backward is not the derivative of its forward."""

from __future__ import annotations

from roundoff.diagnose.layers import forward_ops
from roundoff.diagnose.numbers import listed, short
from roundoff.runs import Finding, JsonValue, Run, Severity
from roundoff.runs.step_ops import StepOp

_IS_OFF = 0.05
_LEAST, _MOST = 0.1, 10.0
"""Outside of these it is no mistake: rounding has no slope, and a gradient that is reversed is meant to be."""
_AGREES = 0.05
"""So near two walks of different lengths come to each other where there is a slope, and no jumps."""


def wrong_backwards(run: Run) -> list[Finding]:
    """Find gradients along which the loss does not change as they say, where an own autograd function is in the graph.

    Without such a function there is nothing that can be wrong: gradients are then edited, or stopped, on purpose.
    """
    for probe in run.probes():
        if probe.get("probe") != "direction":
            continue
        functions, by_site = probe.get("functions"), probe.get("by_site")
        entries = [entry for entry in by_site if isinstance(entry, dict)] if isinstance(by_site, list) else []
        off = [entry for entry in entries if _is_off(entry)]
        if isinstance(functions, list) and functions and off:
            return [_finding(run, probe, [str(name) for name in functions], off)]
    return []


def _is_off(entry: dict[str, JsonValue]) -> bool:
    """Say whether the loss has a slope along a parameter's gradient, and another than the gradient says."""
    ratio, further = entry.get("ratio"), entry.get("ratio_further", entry.get("ratio"))
    if not isinstance(ratio, float) or not isinstance(further, float):
        return False
    has_slope = _LEAST < ratio < _MOST and abs(ratio - further) <= _AGREES * ratio
    return has_slope and abs(ratio - 1) > _IS_OFF


def _finding(run: Run, probe: dict[str, JsonValue], functions: list[str], off: list[dict[str, JsonValue]]) -> Finding:
    place = _place_after({str(entry.get("site")) for entry in off}, forward_ops(run))
    names = [str(entry.get("parameter")) for entry in off]
    ratios = sorted(value for entry in off if isinstance(value := entry.get("ratio"), float))
    step = probe.get("step")
    return Finding(
        rule="wrong-backward",
        severity=Severity.ERROR,
        confidence=0.95 if len(functions) == 1 else 0.85,
        step=step if isinstance(step, int) else None,
        phase="backward",
        site=None if place is None else place.first.site,
        parameter=names[-1],
        source=None if place is None else place.first.source,
        title=f"the backward of {listed(functions)} is wrong",
        why=f"along the gradients of {listed(names)} the loss changes, in fp64, {short(ratios[len(ratios) // 2])} "
        "times as much as they say, where it should be 1; all of them lie before the function",
        fix=f"compare backward with forward in {listed(functions)}: torch.autograd.gradcheck(function, fp64 inputs)",
        evidence=({"functions": list(functions), "ratio": probe.get("ratio"), "by_site": probe.get("by_site")},),
    )


def _place_after(sites: set[str], ops: list[StepOp]) -> StepOp | None:
    """Return the op after the last one of these sites: the function is the next to run."""
    places = [index for index, op in enumerate(ops) if op.first.site in sites]
    return ops[places[-1] + 1] if places and places[-1] + 1 < len(ops) else None
