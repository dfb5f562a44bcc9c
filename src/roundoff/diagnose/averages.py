"""The rule for averages of the weights that are none: the weights themselves, or copies that never move."""

from __future__ import annotations

from roundoff.diagnose.numbers import plural, short
from roundoff.runs import Finding, JsonValue, Run, Severity

_STANDS_STILL = 2e-5
"""Of the weight's own way: an average with a decay of 0.9999 goes fifty times as far in the steps looked at."""
_LEAST_WRITES = 5


def broken_averages(run: Run) -> list[Finding]:
    """Find averages that share memory with the weights, and those that are written to and stay where they are."""
    for probe in run.probes():
        if probe.get("probe") == "averages":
            found = _alias(probe) or _still(probe)
            if found is not None:
                return [found]
    return []


def _alias(probe: dict[str, JsonValue]) -> Finding | None:
    """Averaging a weight with itself makes it smaller by the same factor each time, and does nothing else."""
    scales, holders = probe.get("scales"), probe.get("num_holders")
    known = [scale for scale in scales if isinstance(scale, float)] if isinstance(scales, list) else []
    if len(known) < _LEAST_WRITES or not holders or not all(0.5 < scale <= 1.0 + 1e-6 for scale in known):
        return None
    factor = sorted(known)[len(known) // 2]
    return _finding(
        probe,
        title="the average of the weights is the weights themselves",
        why=f"somebody else holds the memory of {probe.get('parameter')}, and between optimizer steps it is written "
        f"{plural(len(known), 'time')} to itself times {factor:.6g}: it is averaged with itself",
        fix="average into copies: copy.deepcopy(model), or {name: value.clone() for name, value in state_dict.items()}",
    )


def _still(probe: dict[str, JsonValue]) -> Finding | None:
    copies, moved = probe.get("copies"), probe.get("moved")
    if not isinstance(copies, list) or not isinstance(moved, float) or not moved:
        return None
    for copy in copies:
        way = copy.get("moved") if isinstance(copy, dict) else None
        if isinstance(copy, dict) and isinstance(way, (int, float)) and way <= _STANDS_STILL * moved:
            return _finding(
                probe,
                title="the average of the weights never moves",
                why=f"a copy of {probe.get('parameter')} was written to {copy.get('num_writes')} times and moved by "
                f"{short(way)}, while the weight moved by {short(moved)}",
                fix="average with the live weights and a decay below 1: average.lerp_(weight, 1 - decay)",
            )
    return None


def _finding(probe: dict[str, JsonValue], *, title: str, why: str, fix: str) -> Finding:
    step, parameter = probe.get("step"), probe.get("parameter")
    return Finding(
        rule="ema-broken",
        severity=Severity.ERROR,
        confidence=0.85,
        step=step if isinstance(step, int) else None,
        phase="optimizer",
        parameter=parameter if isinstance(parameter, str) else None,
        title=title,
        why=why,
        fix=fix,
        evidence=(dict(probe),),
    )
