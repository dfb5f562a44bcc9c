"""Inputs of one model that have different numbers of samples, and are stretched to fit each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import model_inputs, site_of
from roundoff.diagnose.rule import Code, error, note, on_first_rank, rule
from roundoff.runs import Finding, Run, TensorFacts

_MIN_STEPS = 3
"""In fewer steps, an input that stays as it is cannot be told from data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two inputs of a model in one step, of which one has a single sample."""

    step: int
    single: TensorFacts
    several: TensorFacts


@rule(
    Code(
        name="batch-sizes-disagree",
        means="A model gets one sample of an input for many of another. They broadcast, so nothing fails, and every "
        "sample meets the same one. If it is always so, this is only a note: one input for all may be intended.",
        fix="Draw both inputs from one batch; leave out last batches that are not full, `drop_last=True`.",
    ),
    order=507,
    checks="inputs of one call with different numbers of samples",
    needs=[needs.inputs],
)
@on_first_rank
def disagreeing_batch_sizes(run: Run, rank: int) -> Finding | None:
    """Find steps in which an input has one sample, and others of the model have many as it had in other steps."""
    inputs = {place: dict(seen) for place, seen in model_inputs(run, rank).items() if _is_once_a_step(seen)}
    pairs = list(_pairs(inputs))
    for pair in pairs:
        sizes = [tensor.shape[0] for tensor in inputs[pair.single.place].values()]
        if any(size > 1 for size in sizes):
            return _finding(pair, rank, is_always=False)
    for pair in pairs:
        hashes = {tensor.hash for tensor in inputs[pair.single.place].values()}
        if len(hashes) >= _MIN_STEPS and len(pair.single.shape) > 1 and len(pair.several.shape) > 1:
            return _finding(pair, rank, is_always=True)
    return None


def _is_once_a_step(seen: list[tuple[int, TensorFacts]]) -> bool:
    """Say whether a place has one tensor in each step, and tensors have samples."""
    return len({step for step, _ in seen}) == len(seen) and all(tensor.shape for _, tensor in seen)


def _pairs(inputs: dict[str, dict[int, TensorFacts]]) -> Iterator[_Pair]:
    for place, seen in inputs.items():
        for step, tensor in seen.items():
            for other_place, others in inputs.items():
                other = others.get(step)
                if other is None or site_of(place) != site_of(other_place):
                    continue
                if tensor.shape[0] == 1 and other.shape[0] > 1 and not tensor.is_only_first:
                    yield _Pair(step=step, single=tensor, several=other)


def _finding(pair: _Pair, rank: int, *, is_always: bool) -> Finding:
    single, several = pair.single, pair.several
    made = note if is_always else error
    before = "in every step" if is_always else f"in step {pair.step}, unlike in others,"
    return made(
        rule="batch-sizes-disagree",
        confidence=0.5 if is_always else 0.9,
        step=pair.step,
        rank=rank,
        phase="forward",
        site=site_of(single.place),
        title=f"{single.place} has 1 sample, {several.place} has {several.shape[0]}",
        why=f"{before} {single.place} of shape {single.shape} meets {several.place} of shape {several.shape}: they "
        f"broadcast, and all {several.shape[0]} samples are combined with the same one",
        fix="draw both from one batch, or check that both have the same length; a loader gives a last batch that is "
        "not full unless drop_last=True",
        evidence=({"single": list(single.shape), "several": list(several.shape), "place": single.place},),
    )
