"""The rule for averages of the weights that are none: the weights themselves, or copies that never move."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.diagnose.layers import first_rank
from roundoff.diagnose.wording import format_short
from roundoff.runs import Finding, JsonValue, ParameterFacts, Run, Severity, Structure
from roundoff.words import plural

# == The rule for a head that was to be the embedding and is a copy of it.


def broken_ties(run: Run) -> list[Finding]:
    """Find an embedding and another weight that start with the same values in different memory.

    Random start values never agree by chance. Copies of whole layers and of whole models do: only a pair of an
    embedding and something else is taken for a tie.
    """
    looks = run.structures(rank=first_rank(run))
    return [_tie_finding(looks[0], *pair) for pair in _pairs(looks[0])] if looks else []


def _pairs(look: Structure) -> Iterator[tuple[ParameterFacts, ParameterFacts]]:
    embeddings = {module.site for module in look.modules if "num_embeddings" in module.settings}
    trained = [p for p in look.parameters if p.optimizers and p.requires_grad and p.name is not None and p.std]
    for embedding in trained:
        for other in trained:
            is_pair = embedding.site in embeddings and other.site not in embeddings
            if is_pair and _start(embedding) == _start(other):
                yield embedding, other


def _start(parameter: ParameterFacts) -> tuple[object, ...]:
    return parameter.shape, parameter.mean, parameter.std, parameter.absmax


def _tie_finding(look: Structure, embedding: ParameterFacts, other: ParameterFacts) -> Finding:
    return Finding(
        rule="tie-broken",
        severity=Severity.ERROR,
        confidence=0.95,
        step=look.step,
        site=other.site,
        parameter=other.name,
        title=f"{other.name} is a copy of {embedding.name}, not tied to it",
        why=f"{embedding.name} and {other.name} start with the same values in different memory, "
        "and the optimizer moves them apart",
        fix="assign the parameter itself, after the last change to either of them: head.weight = embedding.weight",
        evidence=({"parameters": [embedding.name, other.name], "shape": list(other.shape)},),
    )


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
    return _average_finding(
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
            return _average_finding(
                probe,
                title="the average of the weights never moves",
                why=f"a copy of {probe.get('parameter')} was written to {copy.get('num_writes')} times and moved by "
                f"{format_short(way)}, while the weight moved by {format_short(moved)}",
                fix="average with the live weights and a decay below 1: average.lerp_(weight, 1 - decay)",
            )
    return None


def _average_finding(probe: dict[str, JsonValue], *, title: str, why: str, fix: str) -> Finding:
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
