"""Evaluation inputs on another scale than the ones a model is trained on."""

from __future__ import annotations

from statistics import median

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import model_inputs
from roundoff.diagnose.rule import Code, FaultEffect, on_first_rank, rule, warning
from roundoff.diagnose.wording import format_short
from roundoff.runs import EvalInputProbe, Finding, Run
from roundoff.words import plural

_MIN_TIMES = 8.0
"""How many times larger or smaller the spread must be, or how many of its deviations away the mean."""
_MAX_OWN_TIMES = 3.0
"""Training batches whose own spreads differ by more than this have no scale to compare with."""
_MIN_BATCHES = 4


@rule(
    Code(
        name="eval-input-scale",
        means="The model is evaluated on inputs of another scale than it is trained on: a normalization that one of "
        "the two pipelines leaves out. Its results in eval mode mean nothing.",
        fix="Give both pipelines the same transforms, up to random augmentation: the same division and normalization.",
        leads_to=(FaultEffect.BREAKS_EVALUATION,),
    ),
    order=1405,
    checks="whether models are evaluated on inputs of the scale that they train on",
    needs=[needs.inputs, needs.probe(EvalInputProbe, missing="no trained model was evaluated on an input of numbers")],
)
@on_first_rank
def differing_scales(run: Run, rank: int) -> Finding | None:
    """Find evaluations whose inputs all differ grossly, in spread or mean, from those of all training batches."""
    for place, seen in model_inputs(run, rank).items():
        batches = [tensor for _, tensor in seen if tensor.std and tensor.mean is not None and "float" in tensor.dtype]
        probes = [p for p in run.probes(EvalInputProbe) if p.place == place and p.std > 0]
        if len(batches) < _MIN_BATCHES or not probes:
            continue
        spreads = [tensor.std or 0.0 for tensor in batches]
        means = [tensor.mean or 0.0 for tensor in batches]
        if max(spreads) > _MAX_OWN_TIMES * min(spreads):
            continue
        spread, mean = median(spreads), median(means)
        away = max(_MIN_TIMES * spread, _MAX_OWN_TIMES * (max(means) - min(means)))
        if all(
            not spread / _MIN_TIMES < probe.std < spread * _MIN_TIMES or abs(probe.mean - mean) > away
            for probe in probes
        ):
            return _finding(place, probes, spread, mean, rank)
    return None


def _finding(place: str, probes: list[EvalInputProbe], spread: float, mean: float, rank: int) -> Finding:
    first = probes[0]
    return warning(
        rule="eval-input-scale",
        confidence=0.9,
        step=first.step,
        rank=rank,
        phase="eval",
        site=place.rpartition("[")[0],
        title="the model is evaluated on inputs of another scale than it trains on",
        why=f"in training its inputs have mean {format_short(mean)} and standard deviation {format_short(spread)}; in "
        f"eval mode mean {format_short(first.mean)} and standard deviation {format_short(first.std)}, from "
        f"{format_short(first.min)} to {format_short(first.max)} ({plural(len(probes), 'evaluation')} looked at)",
        fix="apply the same division and normalization to both: compare the transforms of the two datasets",
        evidence=({"mean": mean, "std": spread, "eval_mean": first.mean, "eval_std": first.std},),
    )
