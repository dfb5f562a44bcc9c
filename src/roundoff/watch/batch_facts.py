"""Looks at what came into a step from outside, through the tape of the step: inputs, labels, and the loss they meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import row as at
from roundoff.kernels.summaries import summarize
from roundoff.record.sites import Sites
from roundoff.runs import BatchFacts, HashColumns, JsonValue, TensorFacts
from roundoff.watch.arguments import Outside, outside_in
from roundoff.watch.step_tape import Entry, FunctionCall, ModelCall, StepTape, flat
from roundoff.watch.tape import is_loss_name
from roundoff.watch.tensor_hashes import hash_columns, hash_in, hash_of

_MOST_VALUES = 1000
"""Whole numbers with more different values than this are not counted: they are ids, not classes."""
_MOST_SAMPLES = 1024


def facts_of(
    tape: StepTape, sites: Sites, *, targets: Sequence[Tensor], criterion_input: dict[str, Any]
) -> tuple[BatchFacts, HashColumns | None]:
    """Describe what came into a step, and hash each of its samples.

    Args:
        tape: the step.
        sites: names for its models.
        targets: what loss functions were given as targets.
        criterion_input: what `criterion_input_facts` says.
    """
    tensors: list[TensorFacts] = []
    hashes: list[tuple[str, int]] = []
    criterion: FunctionCall | ModelCall | None = None
    with torch.no_grad():
        for entry in flat(tape.entries):
            if is_loss(entry):
                criterion = entry  # type: ignore[assignment]
        for place, x, is_target in tensors_from_outside(tape, sites):
            tensors.append(_tensor_facts(place, x, is_target=is_target))
            hashes += [(place, number) for number in _sample_hashes(x)]
        facts = BatchFacts(
            step=tape.step,
            tensors=tuple(tensors),
            targets=tuple(_tensor_facts("target", x.detach(), is_target=True) for x in targets),
            **_criterion_facts(criterion),
            **criterion_input,
        )
    return facts, hash_columns(tape.step, "sample", hashes) if hashes else None


def tensors_from_outside(tape: StepTape, sites: Sites) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield what came into a step, once each: the place it went to first, its values, whether a loss took it."""
    met: set[int] = set()
    for entry in flat(tape.entries):
        for place, outside in _outside_of(entry, sites):
            if id(outside) not in met:
                met.add(id(outside))
                yield place, outside.copy, is_loss(entry)


def is_loss(entry: Entry) -> bool:
    """Say whether a call computes a loss: a function or module of torch's that is named so."""
    if isinstance(entry, FunctionCall):
        return is_loss_name(entry.function.__name__)
    return isinstance(entry, ModelCall) and type(entry.module).__module__ == "torch.nn.modules.loss"


def _outside_of(entry: Entry, sites: Sites) -> Iterator[tuple[str, Outside]]:
    if isinstance(entry, ModelCall):
        name = sites.names[sites.of_module(entry.module, 0)]
    elif isinstance(entry, FunctionCall):
        name = entry.function.__name__
    else:
        return
    for index, value in enumerate(entry.args):
        for outside in outside_in(value):
            yield f"{name}[{index}]", outside
    for key, value in entry.kwargs.items():
        for outside in outside_in(value):
            yield f"{name}:{key}", outside


def _tensor_facts(place: str, x: Tensor, *, is_target: bool) -> TensorFacts:
    shape, dtype = tuple(x.shape), str(x.dtype).removeprefix("torch.")
    if not x.numel() or x.is_complex() or x.layout is not torch.strided:
        return TensorFacts(place=place, shape=shape, dtype=dtype, is_target=is_target)
    row = summarize(x)
    bad = int(row[at.NUM_NAN] + row[at.NUM_POSINF] + row[at.NUM_NEGINF])
    count = max(x.numel() - bad, 1)
    mean = float(row[at.SUM]) / count
    return TensorFacts(
        place=place,
        shape=shape,
        dtype=dtype,
        min=_number(row[at.MIN]),
        max=_number(row[at.MAX]),
        mean=mean,
        std=math.sqrt(max(float(row[at.SUM_SQUARES]) / count - mean * mean, 0.0)),
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
    if len(values) > _MOST_VALUES:
        return {}
    return {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}


def _inner_counts(x: Tensor) -> dict[str, int]:
    if x.is_floating_point() or x.dtype is torch.bool or x.dim() != 2 or x.numel() > 2**20:
        return {}
    begins = (x == x[:, :1]).cumprod(1)
    ends = (x == x[:, -1:]).flip(1).cumprod(1).flip(1)
    return _counts(x[(begins + ends) == 0])


def _sample_hashes(x: Tensor) -> list[int]:
    if x.dim() < 2 or x.shape[0] > _MOST_SAMPLES or not x.numel() or x.is_complex():
        return []
    return [hash_of(sample) for sample in x]


def _criterion_facts(call: FunctionCall | ModelCall | None) -> dict[str, Any]:
    if call is None:
        return {}
    settings: dict[str, JsonValue] = {}
    given = vars(call.module) if isinstance(call, ModelCall) else call.kwargs
    for key, value in given.items():
        if value is None or isinstance(value, (bool, int, float, str)):
            settings[key] = value
    name = type(call.module).__name__ if isinstance(call, ModelCall) else call.function.__name__
    return {"criterion": name, "criterion_settings": settings}


def criterion_input_facts(x: Any) -> dict[str, Any]:
    """Describe the first argument of a criterion: how many classes, and whether its rows are probabilities already."""
    if not isinstance(x, Tensor) or x.dim() < 2 or not x.is_floating_point():
        return {}
    with torch.no_grad():
        sums = x.detach().double().sum(1)
        is_probability = bool(((sums - 1).abs() < 1e-3).all()) and bool((x >= 0).all())
    return {"rows_sum_to_one": is_probability, "num_classes": x.shape[1]}
