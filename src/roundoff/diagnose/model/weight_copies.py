"""Copies of weights that should not be copies, or should change: untied embeddings and averages (EMA)."""

from __future__ import annotations

from collections.abc import Iterator

from roundoff.diagnose import needs
from roundoff.diagnose.rule import Code, error, rule
from roundoff.diagnose.step_flow import first_rank
from roundoff.diagnose.wording import format_short
from roundoff.runs import AveragesProbe, AverageTwinProbe, Finding, ParameterFacts, Run, Severity, Structure, object_of
from roundoff.words import join_names, plural

_MAX_STILL = 2e-5
"""A copy that moves less than this, relative to the weight, is not an average: one with a decay of 0.9999 moves fifty
times as far in the observed steps."""
_MIN_WRITES = 5


@rule(
    Code(
        name="tie-broken",
        means="An output layer starts with exactly the values of the embedding but has its own memory: the two were "
        "meant to be one parameter and drift apart.",
        fix="Assign the parameter itself, after the last change to either: `head.weight = embedding.weight`.",
    ),
    order=230,
    checks="weights tied to an embedding",
    needs=[
        needs.structure,
        needs.module(lambda module: "num_embeddings" in module.settings, "the model has no embedding"),
    ],
)
def broken_ties(run: Run) -> list[Finding]:
    """Find an embedding and another weight that start with the same values in different memory.

    Random initial values never agree by chance. Copies of whole layers or models do, so only a pair of an embedding and
    another kind of layer counts as a tie.
    """
    looks = run.structures(rank=first_rank(run))
    return [_tie_finding(looks[0], *pair) for pair in _pairs(looks[0])] if looks else []


def _pairs(look: Structure) -> Iterator[tuple[ParameterFacts, ParameterFacts]]:
    embeddings = {module.site for module in look.modules if "num_embeddings" in module.settings}
    trained = [p for p in look.parameters if p.optimizers and p.requires_grad and p.name is not None and p.std]
    for embedding in trained:
        for other in trained:
            is_pair = embedding.site in embeddings and other.site not in embeddings
            if is_pair and _initial_values(embedding) == _initial_values(other):
                yield embedding, other


def _initial_values(parameter: ParameterFacts) -> tuple[object, ...]:
    return parameter.shape, parameter.mean, parameter.std, parameter.absmax


def _tie_finding(look: Structure, embedding: ParameterFacts, other: ParameterFacts) -> Finding:
    return error(
        rule="tie-broken",
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


@rule(
    Code(
        name="ema-broken",
        means="The average of the weights does not work: it shares memory with the weights, or it never changes.",
        fix="Average into clones: `average.lerp_(weight, 1 - decay)`.",
        follows_from=("sum-stands-still",),
    ),
    order=330,
    checks="averages of the weights (EMA)",
    needs=[needs.probe(AveragesProbe, missing="no average of the weights was seen")],
)
def broken_averages(run: Run) -> Finding | None:
    """Find averages that share memory with the weights, and averages that are written to but never change."""
    for probe in run.probes(AveragesProbe):
        found = _judge_shared_memory(probe) or _judge_still_copy(probe)
        if found is not None:
            return found
    return None


def _judge_shared_memory(probe: AveragesProbe) -> Finding | None:
    """Find a weight that is averaged with itself: each time it only shrinks by the same factor."""
    scales = probe.scales
    if len(scales) < _MIN_WRITES or not probe.num_holders or not all(0.5 < scale <= 1.0 + 1e-6 for scale in scales):
        return None
    factor = sorted(scales)[len(scales) // 2]
    return _average_finding(
        probe,
        title="the average of the weights is the weights themselves",
        why=f"another object shares the memory of {probe.parameter}, which was multiplied by {factor:.6g} "
        f"{plural(len(scales), 'time')} between optimizer steps: it is averaged with itself",
        fix="average into copies: copy.deepcopy(model), or {name: value.clone() for name, value in state_dict.items()}",
    )


def _judge_still_copy(probe: AveragesProbe) -> Finding | None:
    for copy in probe.copies if probe.moved else ():
        if copy.moved <= _MAX_STILL * probe.moved:
            return _average_finding(
                probe,
                title="the average of the weights never changes",
                why=f"a copy of {probe.parameter} was written to {copy.num_writes} times and moved by "
                f"{format_short(copy.moved)}, while the weight moved by {format_short(probe.moved)}",
                fix="average with the live weights and a decay below 1: average.lerp_(weight, 1 - decay)",
            )
    return None


def _average_finding(probe: AveragesProbe, *, title: str, why: str, fix: str) -> Finding:
    return error(
        rule="ema-broken",
        confidence=0.85,
        step=probe.step,
        phase="optimizer",
        parameter=probe.parameter,
        title=title,
        why=why,
        fix=fix,
        evidence=(object_of(probe),),
    )


_OBSERVED_STEPS = 15
_WEIGHTED_STEPS = 12.0
"""Weights that move evenly from step 0 on are so many times farther from their average, in the observed steps."""
_HARDLY = 0.1


@rule(
    Code(
        name="average-too-slow",
        means="The decay of the average (EMA) is so close to 1 that it still consists of the initial weights when the "
        "training ends.",
        fix="Use a decay that fits the number of steps, or one that grows: `min(decay, (1 + step) / (10 + step))`.",
        follows_from=("ema-broken", "sum-stands-still"),
    ),
    order=332,
    checks="averages of the weights that are too slow for the training",
    needs=[needs.probe(AveragesProbe, missing="no average of the weights was seen")],
)
def slow_averages(run: Run) -> Finding | None:
    """Find an evaluated average that moved so little in the first steps that all steps cannot bring it along."""
    num_steps = max((metric.step for metric in run.metrics(rank=first_rank(run))), default=0) + 1
    for probe in run.probes(AveragesProbe):
        for copy in probe.copies if probe.moved else ():
            share = copy.moved / probe.moved / _WEIGHTED_STEPS
            is_slow = 0 < share * num_steps < _HARDLY and copy.moved > _MAX_STILL * probe.moved
            if is_slow and copy.num_writes >= _OBSERVED_STEPS:
                is_evaluated = bool(run.probes(AverageTwinProbe))
                return Finding(
                    rule="average-too-slow",
                    severity=Severity.WARNING if is_evaluated else Severity.NOTE,
                    confidence=0.85,
                    step=probe.step,
                    phase="optimizer",
                    parameter=probe.parameter,
                    title="the average of the weights is still close to the initial ones when the training ends",
                    why=f"while {probe.parameter} moved by {format_short(probe.moved)}, its average moved by "
                    f"{format_short(copy.moved)}, which is that of a decay of about {1 - share:.5g}; in "
                    f"{plural(num_steps, 'step')} it keeps about {(1 - share) ** num_steps:.0%} of the initial "
                    f"weights{', and the average is what is evaluated' if is_evaluated else ''}",
                    fix=f"use a smaller decay, such as {max(0.5, 1 - 10 / num_steps):.3g} for so many steps, or one "
                    "that grows: min(decay, (1 + step) / (10 + step))",
                    evidence=(object_of(probe),),
                )
    return None


@rule(
    Code(
        name="average-incomplete",
        means="A copy of the model that follows its weights (EMA) is evaluated, but some of its tensors are still as "
        "they were: the running statistics of norms, or parameters that joined later.",
        fix="Copy or average the buffers too, after each update, or recompute statistics before the copy is used: "
        "`torch.optim.swa_utils.update_bn`.",
        follows_from=("ema-broken", "sum-stands-still", "running-stats-frozen", "running-stats-lost"),
    ),
    order=335,
    checks="copies of the model that follow it only in part",
    needs=[needs.probe(AverageTwinProbe, missing="no copy of a model was evaluated")],
)
def incomplete_averages(run: Run) -> Finding | None:
    """Find a copy of the model of which some tensors follow the model and others stay at their start values.

    A copy that does not move at all is a teacher or a target that is updated later.
    """
    probes = run.probes(AverageTwinProbe)
    if not probes or not probes[-1].still or not probes[-1].num_followed:
        return None
    found = probes[-1]
    names = found.buffers or found.still
    what = "buffers" if found.buffers else "parameters"
    return error(
        rule="average-incomplete",
        confidence=0.85,
        step=found.step,
        phase="eval",
        parameter=names[0],
        title=f"the averaged copy of the model keeps {plural(len(names), what[:-1])} at the start values",
        why=f"a copy of the model ({found.kind}) was evaluated in step {found.step}; of the {found.num_moving} tensors "
        f"of the model that have changed since step 4, {found.num_followed} have changed in the copy, and "
        f"{len(found.still)} have not: {join_names(found.still)}",
        fix="copy the buffers too after each update (average_buffer.copy_(buffer)), or AveragedModel(model, "
        "use_buffers=True), or update_bn(loader, average) before it is evaluated"
        if found.buffers
        else "average all parameters of the model, also those that were added or unfrozen later",
        evidence=(object_of(found),),
    )
