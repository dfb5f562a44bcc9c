"""The batch of a step, found on its tape: its inputs, targets and criterion described, and a few samples kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import row as columns
from roundoff.kernels.compiled import widest_float
from roundoff.kernels.host_copies import Reading
from roundoff.kernels.summaries import summarize
from roundoff.record.loop.sites import Sites
from roundoff.record.tensor_bytes import bytes_of, file_dtype
from roundoff.replay.arguments import ExternalTensor, Result, external_tensors_in, references
from roundoff.replay.step_tape import (
    BackwardEntry,
    FunctionEntry,
    ModelEntry,
    StepTape,
    TapeEntry,
    flatten_entries,
    number_results,
)
from roundoff.replay.swapping import local_part
from roundoff.replay.tape_recorder import is_loss_name
from roundoff.runs import BatchFacts, HashColumns, JsonValue, RunWriter, TensorFacts
from roundoff.watch.facts.tensor_hashes import hash_columns, hash_in, hash_of

_MAX_VALUES = 1000
"""Integers with more distinct values than this are not counted: they are ids, not classes."""
_MAX_HASHED_SAMPLES = 1024
_MAX_SAMPLES = 8
_MAX_TENSORS = 4
_MAX_BYTES = 4 * 2**20
"""Of one tensor; a larger sample is not kept."""


def batch_facts_of(
    tape: StepTape, sites: Sites, *, targets: Sequence[Tensor], criterion_input: dict[str, Any]
) -> Reading[tuple[BatchFacts, HashColumns | None]]:
    """Describe the external tensors of a step, and hash each sample.

    Args:
        tape: of the step.
        sites: the names of its models.
        targets: the targets that loss functions were called with.
        criterion_input: the result of `criterion_input_facts`.
    """
    tensors: list[TensorFacts] = []
    hashes: list[tuple[str, int]] = []
    criterion: FunctionEntry | ModelEntry | None = None
    with torch.no_grad():
        for entry in _trained_entries(tape):
            if is_loss(entry):
                criterion = entry  # type: ignore[assignment]
        computed = _computed_places(tape, sites)
        external = list(external_tensors(tape, sites))
        answers = [x for x in criterion_input.values() if isinstance(x, Tensor)]
    host = yield [*(x for _, x, _ in external), *(x.detach() for x in targets), *answers]
    with torch.no_grad():
        host_targets = host[len(external) : len(external) + len(targets)]
        if answers:
            criterion_input = {**criterion_input, "rows_sum_to_one": bool(host[-1])}
        for (place, _, is_target), x in zip(external, host, strict=False):
            found = _tensor_facts(place, x, is_target=is_target)
            tensors.append(replace(found, is_only_first=True) if place in computed else found)
            hashes += [(place, number) for number in sample_hashes(x)]
        facts = BatchFacts(
            step=tape.step,
            tensors=tuple(tensors),
            targets=tuple(_tensor_facts("target", x, is_target=True) for x in host_targets),
            **_criterion_facts(criterion),
            **criterion_input,
        )
    return facts, hash_columns(tape.step, "sample", hashes) if hashes else None


def external_tensors(tape: StepTape, sites: Sites) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield each external tensor of a step once: its first use, its values, whether a loss used it."""
    met: set[int] = set()
    for entry in _trained_entries(tape):
        for place, external in _external_of(entry, sites):
            x = external.copy
            if id(external) not in met and not (x.is_nested or x.is_meta):  # which have no shape or values to describe
                met.add(id(external))
                yield place, local_part(x), is_loss(entry)


def _trained_entries(tape: StepTape) -> list[TapeEntry]:
    """Return the entries of a step without those of evaluations with gradients, whose batches are not trained on.

    Those are the calls of a trained model whose results no backward of the step needs, and what is computed from them.
    """
    numbered = number_results(tape.entries)
    needed = {
        found.number for entry, _ in numbered if isinstance(entry, BackwardEntry) for found in _results(entry.roots)
    }
    trained: set[int] = set()
    for entry, numbers in reversed(numbered):
        if not needed.isdisjoint(numbers) or _writes_into_another(entry):
            trained.add(id(entry))
            needed.update(found.number for found in _results(_given_to(entry)))
    models = {id(entry.module) for entry, _ in numbered if isinstance(entry, ModelEntry) and id(entry) in trained}
    evaluated: set[int] = set()
    kept: list[TapeEntry] = []
    for entry, numbers in numbered:
        is_of_model = isinstance(entry, ModelEntry) and id(entry.module) in models
        uses_one = any(found.number in evaluated for found in _results(_given_to(entry)))
        if id(entry) not in trained and numbers and (is_of_model or uses_one):
            evaluated.update(numbers)
        else:
            kept.append(entry)
    return kept


def _writes_into_another(entry: TapeEntry) -> bool:
    """Say whether a function writes into a tensor, or into what a view shows: `out[:, t] = ...` returns nothing."""
    if not isinstance(entry, FunctionEntry):
        return False
    name = entry.function.__name__
    return not entry.num_results or (name.endswith("_") and not name.endswith("__"))


def _given_to(entry: TapeEntry) -> tuple[Any, ...]:
    if isinstance(entry, ModelEntry):
        return entry.args, entry.kwargs, entry.replaced
    return (entry.args, entry.kwargs) if isinstance(entry, FunctionEntry) else ()


def _results(value: Any) -> Iterator[Result]:
    return (found for found in references(value) if isinstance(found, Result))


def is_loss(entry: TapeEntry) -> bool:
    """Say whether a call computes a loss, going by the name of the torch function or module."""
    if isinstance(entry, FunctionEntry):
        return is_loss_name(entry.function.__name__)
    return isinstance(entry, ModelEntry) and type(entry.module).__module__ == "torch.nn.modules.loss"


def _computed_places(tape: StepTape, sites: Sites) -> set[str]:
    """Return the arguments of models that take tensors which the step has computed itself."""
    return {
        place
        for entry in flatten_entries(tape.entries)
        if isinstance(entry, ModelEntry)
        for place, value in _arguments_of(entry, sites)
        if any(_results(value))
    }


def _external_of(entry: TapeEntry, sites: Sites) -> Iterator[tuple[str, ExternalTensor]]:
    for place, value in _arguments_of(entry, sites):
        for external in external_tensors_in(value):
            yield place, external


def _arguments_of(entry: TapeEntry, sites: Sites) -> Iterator[tuple[str, Any]]:
    if isinstance(entry, ModelEntry):
        name = sites.names[sites.of_module(entry.module, 0)]
    elif isinstance(entry, FunctionEntry):
        name = entry.function.__name__
    else:
        return
    for index, value in enumerate(entry.args):
        yield f"{name}[{index}]", value
    for key, value in entry.kwargs.items():
        yield f"{name}:{key}", value


def _tensor_facts(place: str, x: Tensor, *, is_target: bool) -> TensorFacts:
    shape, dtype = tuple(x.shape), str(x.dtype).removeprefix("torch.")
    if not x.numel() or x.is_complex() or x.layout is not torch.strided:
        return TensorFacts(place=place, shape=shape, dtype=dtype, is_target=is_target)
    row = summarize(x)
    bad = int(row[columns.NUM_NAN] + row[columns.NUM_POSINF] + row[columns.NUM_NEGINF])
    count = max(x.numel() - bad, 1)
    mean = float(row[columns.SUM]) / count
    return TensorFacts(
        place=place,
        shape=shape,
        dtype=dtype,
        min=_number(row[columns.MIN]),
        max=_number(row[columns.MAX]),
        mean=mean,
        std=math.sqrt(max(float(row[columns.SUM_SQUARES]) / count - mean * mean, 0.0)),
        num_nonfinite=bad,
        hash=f"{hash_in(row):016x}",
        counts=_counts(x),
        inner_counts=_inner_counts(x),
        is_target=is_target,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _counts(x: Tensor) -> dict[str, int]:
    if x.is_floating_point() or x.numel() > 2**20:
        return {}
    values, counts = torch.unique(x, return_counts=True)
    if len(values) > _MAX_VALUES:
        return {}
    return {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


def _inner_counts(x: Tensor) -> dict[str, int]:
    if x.is_floating_point() or x.dtype is torch.bool or x.dim() != 2 or x.numel() > 2**20:
        return {}
    begins = (x == x[:, :1]).cumprod(1)
    ends = (x == x[:, -1:]).flip(1).cumprod(1).flip(1)
    return _counts(x[(begins + ends) == 0])


def sample_hashes(x: Tensor) -> list[int]:
    """Return the hash of each sample of a batch; none of a batch that is too large, or has a number per sample."""
    is_plain = x.layout is torch.strided and not x.is_complex()
    if x.dim() < 2 or x.shape[0] > _MAX_HASHED_SAMPLES or not x.numel() or not is_plain:
        return []
    return [hash_of(sample) for sample in x]


def _criterion_facts(call: FunctionEntry | ModelEntry | None) -> dict[str, Any]:
    if call is None:
        return {}
    settings: dict[str, JsonValue] = {}
    given = vars(call.module) if isinstance(call, ModelEntry) else call.kwargs
    for key, value in given.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            settings[key] = value
    name = type(call.module).__name__ if isinstance(call, ModelEntry) else call.function.__name__
    return {"criterion": name, "criterion_settings": settings}


def criterion_input_facts(x: Any) -> dict[str, Any]:
    """Describe the first argument of a criterion: the number of classes, and whether its rows are probabilities.

    On an accelerator that stays a tensor, so that nothing waits for it.
    """
    if not isinstance(x, Tensor) or x.is_meta or x.dim() < 2 or not x.is_floating_point():
        return {}
    with torch.no_grad():
        sums = x.detach().to(widest_float(x.device)).sum(1)
        is_probability = ((sums - 1).abs() < 1e-3).all() & (x >= 0).all()
    return {"rows_sum_to_one": bool(is_probability) if x.is_cpu else is_probability, "num_classes": x.shape[1]}


class BatchSamples:
    """Writes the first samples of the inputs of models and loss functions in the first steps, to be looked at."""

    def __init__(self, writer: RunWriter, *, sites: Sites, most: int) -> None:
        self._writer = writer
        self._sites = sites
        self._most = most
        self._next = 0

    def see(self, tape: StepTape, *, targets: Sequence[Tensor]) -> None:
        """Keep a part of a step's batch, or of its first microbatch, if the step is among the first."""
        if self._next >= self._most:
            return
        found: dict[str, Tensor] = {}
        for key, x in self._name_tensors(tape, targets):
            part = _first_samples(x)
            if part is not None and len(found) < _MAX_TENSORS:
                found.setdefault(key, part)
        if not found:
            return
        with self._writer.batch(self._next) as file:
            for key, part in found.items():
                file.add(key, bytes_of(part), dtype=str(file_dtype(part)), shape=tuple(part.shape))
        self._next += 1

    def _name_tensors(self, tape: StepTape, targets: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the target of the loss, then the inputs of models, named after their first use."""
        external = list(external_tensors(tape, self._sites))
        given = targets or [x for place, x, is_target in external if is_target or place.endswith(":labels")]
        yield from (("target", x.detach()) for x in given[:1])
        yield from ((f"input/{place}", x) for place, x, is_target in external if not is_target)


def _first_samples(x: Tensor) -> Tensor | None:
    """Return as many of the first samples as fit; None if not even one does."""
    if not x.dim() or not x.numel() or x.is_meta or x.layout is not torch.strided or file_dtype(x) is None:
        return None
    sample_bytes = x[0].numel() * x.element_size()
    num = min(_MAX_SAMPLES, len(x), _MAX_BYTES // max(1, sample_bytes))
    return x[:num] if num else None
