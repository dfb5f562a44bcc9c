"""Compares what came into two trainings: the loss, batches, samples and their order, targets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind, differing_values
from roundoff.runs import BatchFacts, EpochDetail, EvalInputProbe, JsonValue, Run, TensorFacts, object_of
from roundoff.runs.records.event import NAMED

_LOADER = {"sampler": 0.6, "replacement": 0.6, "num_samples": 0.8, "batch_size": 0.85, "set_epoch": 0.5, "shuffle": 0.6}
"""The settings of a DataLoader, and how suspicious a difference of it is."""
_SPREADS_APART = 0.25
"""Batches are of another kind if their means or their spreads differ by more than this share of the spread."""


def data_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what came into the runs of rank 0 from outside."""
    reference_batches, candidate_batches = (
        {facts.step: facts for facts in run.inputs()} for run in (reference, candidate)
    )
    common = sorted(set(reference_batches) & set(candidate_batches))
    evaluations = list(_evaluations(reference, candidate))
    if not common:
        return [*_loaders(reference, candidate), *_recorded_inputs(reference, candidate), *evaluations]
    pairs = [(reference_batches[step], candidate_batches[step]) for step in common]
    return [
        *_loaders(reference, candidate),
        *_loss(*pairs[0]),
        *_shapes(*pairs[0]),
        *_kinds_of_values([first for first, _ in pairs], [second for _, second in pairs]),
        *_order(reference, candidate, pairs),
        *evaluations,
    ]


def _evaluations(reference: Run, candidate: Run) -> Iterator[SettingDifference]:
    """Yield the first evaluation that is given something else, if both runs describe it."""
    first, second = (_eval_inputs(run) for run in (reference, candidate))
    for key in [key for key in first if key in second and first[key] != second[key]][:1]:
        place, step = key[1], key[0]
        what = f"what {place} is given in the evaluation after step {step}"
        yield SettingDifference(what, first[key], second[key], kind=SettingKind.EVALUATION, suspicion=0.8)


def _eval_inputs(run: Run) -> dict[tuple[int, str, int], str]:
    """Describe the inputs of evaluations, by step, place and how often it was evaluated in that step."""
    found: dict[tuple[int, str, int], str] = {}
    counts: Counter[tuple[int, str]] = Counter()
    for probe in run.probes(EvalInputProbe):
        nth = counts[probe.step, probe.place]
        counts[probe.step, probe.place] += 1
        numbers = f"mean {probe.mean:.6g}, std {probe.std:.6g}, from {probe.min:.6g} to {probe.max:.6g}"
        found[probe.step, probe.place, nth] = f"{'x'.join(map(str, probe.shape))}, {numbers}"
    return found


def _loss(reference: BatchFacts, candidate: BatchFacts) -> Iterator[SettingDifference]:
    if reference.criterion != candidate.criterion:
        yield _of_loss("loss function", reference.criterion, candidate.criterion)
        return
    for name, first, second in differing_values(reference.criterion_settings, candidate.criterion_settings):
        yield _of_loss(f"{name} of {reference.criterion}", first, second)
    if reference.num_classes != candidate.num_classes:
        yield _of_loss(f"classes of {reference.criterion}", reference.num_classes, candidate.num_classes)
    if reference.rows_sum_to_one != candidate.rows_sum_to_one:
        yield _of_loss("rows that add up to 1 go into the loss", reference.rows_sum_to_one, candidate.rows_sum_to_one)


def _shapes(reference: BatchFacts, candidate: BatchFacts) -> Iterator[SettingDifference]:
    sizes: tuple[int, int] | None = None
    for place, first, second in _common_tensors(reference, candidate):
        is_larger_batch = first.shape and second.shape and first.shape[1:] == second.shape[1:]
        if first.shape != second.shape and is_larger_batch:
            if sizes is None:
                sizes = first.shape[0], second.shape[0]
                yield _of_data("batch size", *sizes, suspicion=0.85)
        elif first.shape != second.shape:
            yield _of_data(f"shape of {place}", list(first.shape), list(second.shape), suspicion=0.85)
        if first.dtype != second.dtype:
            yield _of_data(f"dtype of {place}", first.dtype, second.dtype, suspicion=0.85)


def _kinds_of_values(reference: list[BatchFacts], candidate: list[BatchFacts]) -> Iterator[SettingDifference]:
    """Yield tensors whose values are of another kind over all steps: not normalized, or labels that start at 1."""
    first, second = _ranges(reference), _ranges(candidate)
    for place in [place for place in first if place in second]:
        (mean, std), (other_mean, other_std) = first[place], second[place]
        allowed = _SPREADS_APART * max(std, other_std)
        if not (abs(mean - other_mean) <= allowed and abs(std - other_std) <= allowed):
            values = f"{mean:.3g} +- {std:.3g}", f"{other_mean:.3g} +- {other_std:.3g}"
            yield _of_data(f"values of {place}", *values, suspicion=0.8)


def _ranges(batches: list[BatchFacts]) -> dict[str, tuple[float, float]]:
    """Return mean and spread of each tensor over all batches."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for facts in batches:
        for place, tensor in _by_place(facts).items():
            if tensor.mean is not None and tensor.std is not None:
                sums.setdefault(place, []).append((tensor.mean, tensor.std**2 + tensor.mean**2))
    found = {}
    for place, rows in sums.items():
        mean = sum(row[0] for row in rows) / len(rows)
        found[place] = (mean, math.sqrt(max(sum(row[1] for row in rows) / len(rows) - mean**2, 0.0)))
    return found


def _order(
    reference: Run, candidate: Run, batches: Sequence[tuple[BatchFacts, BatchFacts]]
) -> Iterator[SettingDifference]:
    """Yield the first step whose batch is another one, and whether the samples are the same over all steps."""
    step = next((first.step for first, second in batches if not _same_batch(first, second)), None)
    if step is None:
        return
    first, second = _samples(reference), _samples(candidate)
    steps = set(first) & set(second)
    all_first, all_second = (sum((side[at] for at in steps), Counter[int]()) for side in (first, second))
    shared, total = (all_first & all_second).total(), all_first.total()
    if first.get(step) and first.get(step) == second.get(step):
        yield _of_data(f"batch of step {step}", "one order", "the same samples in another order", suspicion=0.4)
    elif total and shared == total == all_second.total():
        difference = f"the same samples over {len(steps)} steps, in another order"
        yield _of_data(f"batches from step {step} on", "one order", difference, suspicion=0.5)
    else:
        difference = f"other samples: {shared} of {total} in common over {len(steps)} steps" if total else "another one"
        yield _of_data(f"batches from step {step} on", "one batch", difference, suspicion=0.6)


def _same_batch(reference: BatchFacts, candidate: BatchFacts) -> bool:
    """Compare the tensors of the same shape and dtype; `_shapes` reports the others."""
    return all(
        first.hash == second.hash
        for _, first, second in _common_tensors(reference, candidate)
        if (first.shape, first.dtype) == (second.shape, second.dtype)
    )


def _samples(run: Run) -> dict[int, Counter[int]]:
    """Return how often each sample, by hash, is in the batch of each step, at the first place that has samples."""
    table = run.hashes(rank=0)
    rows = zip(*(table[name].to_list() for name in ("step", "kind", "name", "hash")), strict=True)
    found: dict[int, Counter[int]] = {}
    place: str | None = None
    for step, kind, name, number in rows:
        if kind == "sample":
            place = place or name
            if name == place:
                found.setdefault(step, Counter())[number] += 1
    return found


def _loaders(reference: Run, candidate: Run) -> Iterator[SettingDifference]:
    """Yield the settings in which the first DataLoaders differ, and data that is not the same."""
    reference_epoch, candidate_epoch = (
        next((call.detail for call in run.calls() if isinstance(call.detail, EpochDetail)), None)
        for run in (reference, candidate)
    )
    if reference_epoch is None or candidate_epoch is None:
        return
    first, second = (
        {name: object_of(epoch).get(name) for name in _LOADER} for epoch in (reference_epoch, candidate_epoch)
    )
    for name, *values in differing_values(first, second):
        yield _of_data(f"{name} of the DataLoader", *values, suspicion=_LOADER[name])
    first_content, second_content = (
        {array.name: f"mean {array.mean}, std {array.std}, hash {array.hash}" for array in epoch.content or ()}
        for epoch in (reference_epoch, candidate_epoch)
    )
    for name, text in first_content.items():
        if second_content.get(name, text) != text:
            yield _of_data(f"{name} of the data set", text, second_content[name], suspicion=0.75)


def _recorded_inputs(reference: Run, candidate: Run) -> Iterator[SettingDifference]:
    """Yield what differs in the recorded inputs of the first common step."""
    steps = sorted(set(reference.steps) & set(candidate.steps))[:1]
    if not steps:
        return
    reference_inputs, candidate_inputs = (_inputs_of(run, steps[0]) for run in (reference, candidate))
    for place in [place for place in reference_inputs if place in candidate_inputs]:
        (shape, dtype, number), (other_shape, other_dtype, other) = reference_inputs[place], candidate_inputs[place]
        if shape != other_shape:
            yield _of_data(f"shape of input {place}", shape, other_shape, suspicion=0.85)
        if dtype != other_dtype:
            yield _of_data(f"dtype of input {place}", dtype, other_dtype, suspicion=0.85)
        if number != other and (shape, dtype) == (other_shape, other_dtype):
            yield _of_data(f"batches from step {steps[0]} on", "one batch", "another one", suspicion=0.6)


def _inputs_of(run: Run, step: int) -> dict[str, tuple[str, str, int]]:
    """Return what came from outside: the inputs of models and losses that nothing computed since the first of them."""
    columns = ["site", "op", "nth", "output", "shape", "dtype", "hash", "phase", "order"]
    rows = run.events(step=step, rank=0, phase="forward", columns=columns).to_list()
    first = min((row["order"] for row in rows if row["op"] == "input"), default=0)
    results = [row for row in rows if row["op"] not in NAMED and row["output"].startswith("output")]
    computed = {row["hash"] for row in results if row["order"] > first}
    return {
        f"{row['site']}#{row['nth']} {row['output']}": (row["shape"], row["dtype"], row["hash"])
        for row in rows
        if row["op"] == "input" and row["hash"] not in computed
    }


def _by_place(facts: BatchFacts) -> dict[str, TensorFacts]:
    """Return the tensors and targets of a step by their places."""
    found = {tensor.place: tensor for tensor in facts.tensors}
    for nth, tensor in enumerate(facts.targets):
        found.setdefault(tensor.place if not nth else f"{tensor.place} {nth}", tensor)
    return found


def _common_tensors(reference: BatchFacts, candidate: BatchFacts) -> Iterator[tuple[str, TensorFacts, TensorFacts]]:
    """Yield the place and both tensors of each place that both batches have."""
    second = _by_place(candidate)
    yield from ((place, first, second[place]) for place, first in _by_place(reference).items() if place in second)


def _of_loss(what: str, reference: JsonValue, candidate: JsonValue) -> SettingDifference:
    return SettingDifference(what, reference, candidate, kind=SettingKind.LOSS, suspicion=0.95)


def _of_data(what: str, reference: JsonValue, candidate: JsonValue, *, suspicion: float) -> SettingDifference:
    return SettingDifference(what, reference, candidate, kind=SettingKind.DATA, suspicion=suspicion)
