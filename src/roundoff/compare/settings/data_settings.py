"""What came into two trainings: the loss they meet, batches, samples and their order, targets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from roundoff.compare.settings.setting_difference import SettingDifference, SettingKind, differing_values
from roundoff.runs import BatchFacts, EpochDetail, JsonValue, Run, TensorFacts
from roundoff.runs.files.plain_json import object_of

_LOADER = {"sampler": 0.6, "replacement": 0.6, "num_samples": 0.8, "batch_size": 0.85, "set_epoch": 0.5, "shuffle": 0.6}
"""The settings of a DataLoader, and how suspicious a difference of it is."""
_SPREADS_APART = 0.25
"""Batches are of another kind if their means differ by so much of their spread, or their spreads by so much."""


def data_differences(reference: Run, candidate: Run) -> list[SettingDifference]:
    """Compare what came into the runs of rank 0 from outside."""
    reference_batches, candidate_batches = (
        {facts.step: facts for facts in run.inputs()} for run in (reference, candidate)
    )
    common = sorted(set(reference_batches) & set(candidate_batches))
    found = [*_loaders(reference, candidate)]
    if common:
        first, second = reference_batches[common[0]], candidate_batches[common[0]]
        found += [*_loss(first, second), *_shapes(first, second)]
        found += _kinds_of_values(
            [reference_batches[step] for step in common], [candidate_batches[step] for step in common]
        )
        found += _order(reference, candidate, reference_batches, candidate_batches)
    else:
        found += _recorded_inputs(reference, candidate)
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
    first, second = _by_place(reference), _by_place(candidate)
    common = [place for place in first if place in second]
    sizes = [place for place in common if _is_larger_batch(first[place], second[place])]
    if sizes:
        values = (facts[sizes[0]].shape[0] for facts in (first, second))
        yield _of_data("batch size", *values, suspicion=0.85)
    for place in common:
        if first[place].shape != second[place].shape and place not in sizes:
            yield _of_data(f"shape of {place}", list(first[place].shape), list(second[place].shape), suspicion=0.85)
        if first[place].dtype != second[place].dtype:
            yield _of_data(f"dtype of {place}", first[place].dtype, second[place].dtype, suspicion=0.85)


def _is_larger_batch(reference: TensorFacts, candidate: TensorFacts) -> bool:
    """Say whether two tensors differ in their first dimension only."""
    return (
        bool(reference.shape and candidate.shape)
        and reference.shape != candidate.shape
        and reference.shape[1:] == candidate.shape[1:]
    )


def _kinds_of_values(reference: list[BatchFacts], candidate: list[BatchFacts]) -> Iterator[SettingDifference]:
    """Yield tensors whose values are of another kind over all steps together: not normalized, labels from 1 on."""
    first, second = _ranges(reference), _ranges(candidate)
    for place in [place for place in first if place in second]:
        if not _is_like(first[place], second[place]):
            told = (f"{mean:.3g} +- {std:.3g}" for mean, std in (first[place], second[place]))
            yield _of_data(f"values of {place}", *told, suspicion=0.8)


def _is_like(reference: tuple[float, float], candidate: tuple[float, float]) -> bool:
    spread = max(reference[1], candidate[1])
    return (
        abs(reference[0] - candidate[0]) <= _SPREADS_APART * spread
        and abs(reference[1] - candidate[1]) <= _SPREADS_APART * spread
    )


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
    reference: Run,
    candidate: Run,
    reference_batches: Mapping[int, BatchFacts],
    candidate_batches: Mapping[int, BatchFacts],
) -> Iterator[SettingDifference]:
    """Yield the first step whose batch is another one, and whether the samples are the same on the whole."""
    step = next(
        (
            step
            for step in sorted(set(reference_batches) & set(candidate_batches))
            if not _same_batch(reference_batches[step], candidate_batches[step])
        ),
        None,
    )
    if step is None:
        return
    first, second = _samples(reference), _samples(candidate)
    steps = set(first) & set(second)
    all_ours = sum((first[at] for at in steps), Counter[int]())
    all_theirs = sum((second[at] for at in steps), Counter[int]())
    shared, total = (all_ours & all_theirs).total(), all_ours.total()
    if first.get(step) and first.get(step) == second.get(step):
        yield _of_data(f"batch of step {step}", "one order", "the same samples in another order", suspicion=0.4)
    elif total and shared == total == all_theirs.total():
        told = f"the same samples over {len(steps)} steps, in another order"
        yield _of_data(f"batches from step {step} on", "one order", told, suspicion=0.5)
    else:
        told = f"other samples: {shared} of {total} in common over {len(steps)} steps" if total else "another one"
        yield _of_data(f"batches from step {step} on", "one batch", told, suspicion=0.6)


def _same_batch(reference: BatchFacts, candidate: BatchFacts) -> bool:
    """Say whether a batch is the same as far as its tensors have the same form: other forms are told by themselves."""
    first, second = _by_place(reference), _by_place(candidate)
    return all(
        first[place].hash == second[place].hash
        for place in set(first) & set(second)
        if (first[place].shape, first[place].dtype) == (second[place].shape, second[place].dtype)
    )


def _samples(run: Run) -> dict[int, Counter[int]]:
    """Return how often each sample is in the batch of each step, by hash: of the first place that has some."""
    table = run.hashes(rank=0)
    rows = zip(*(table[name].to_pylist() for name in ("step", "kind", "name", "hash")), strict=True)
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
    for name, first_value, second_value in differing_values(first, second):
        yield _of_data(f"{name} of the DataLoader", first_value, second_value, suspicion=_LOADER[name])
    contents = _contents(reference_epoch), _contents(candidate_epoch)
    for name in [name for name in contents[0] if name in contents[1]]:
        first_content, second_content = contents[0][name], contents[1][name]
        if first_content != second_content:
            yield _of_data(f"{name} of the data set", first_content, second_content, suspicion=0.75)


def _contents(epoch: EpochDetail) -> dict[str, str]:
    """Return what each array of a data set holds, in words that tell it from others."""
    return {array.name: f"mean {array.mean}, std {array.std}, hash {array.hash}" for array in epoch.content or ()}


def _recorded_inputs(reference: Run, candidate: Run) -> Iterator[SettingDifference]:
    """Yield what differs of the inputs that two recordings have of their first common step."""
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
    columns = ["site", "nth", "output", "shape", "dtype", "hash", "phase"]
    rows = run.events(step=step, op="input", rank=0, phase="forward", columns=columns).to_pylist()
    return {f"{row['site']}#{row['nth']} {row['output']}": (row["shape"], row["dtype"], row["hash"]) for row in rows}


def _by_place(facts: BatchFacts) -> dict[str, TensorFacts]:
    """Return the tensors and targets of a step by their places."""
    found = {tensor.place: tensor for tensor in facts.tensors}
    for nth, tensor in enumerate(facts.targets):
        found.setdefault(tensor.place if not nth else f"{tensor.place} {nth}", tensor)
    return found


def _of_loss(what: str, reference: JsonValue, candidate: JsonValue) -> SettingDifference:
    return SettingDifference(what=what, reference=reference, candidate=candidate, kind=SettingKind.LOSS, suspicion=0.95)


def _of_data(what: str, reference: JsonValue, candidate: JsonValue, *, suspicion: float) -> SettingDifference:
    return SettingDifference(
        what=what, reference=reference, candidate=candidate, kind=SettingKind.DATA, suspicion=suspicion
    )
