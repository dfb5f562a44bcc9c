"""Inputs whose values cannot be intended: far too large, constant, or padding that is a real token."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from roundoff.diagnose import needs
from roundoff.diagnose.loop_facts import model_inputs, sample_hashes, site_of, targets_of
from roundoff.diagnose.parameter_histories import ParameterHistory, parameter_histories
from roundoff.diagnose.rule import Code, error, on_first_rank, rule
from roundoff.diagnose.step_flow import root_mean_square
from roundoff.diagnose.wording import format_short
from roundoff.runs import Event, Finding, ModuleFacts, Run, Severity, TensorFacts
from roundoff.runs.records.event import bare_name
from roundoff.words import plural

LARGE, VERY_LARGE = 50.0, 300.0
"""Root mean squares of an input: raw pixels are large, standardized values times a thousand are very large."""
_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "native_layer_norm", "native_group_norm", "cudnn_batch_norm")
_PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "convolution", "linear", "matmul", "mkldnn_rnn_layer", "lstm", "gru")
_MIN_COLLISIONS = 3
Seen = Sequence[tuple[int, TensorFacts]]
"""(step, tensor) of one input."""


@rule(
    Code(
        name="padding-collision",
        means="The `padding_idx` of an embedding is a token that occurs in the text: its row is never trained.",
        fix="Give padding its own id, or leave `padding_idx` out.",
    ),
    order=540,
    checks="padding rows that are real tokens",
    needs=[
        needs.inputs,
        needs.module(
            lambda module: isinstance(module.settings.get("padding_idx"), int), "no embedding has a padding_idx"
        ),
    ],
)
@on_first_rank
def colliding_paddings(run: Run, rank: int) -> Finding | None:
    """Find an embedding whose `padding_idx` occurs in the middle of the rows, between other tokens."""
    modules = [module for structure in run.structures(rank=rank) for module in structure.modules]
    for seen in model_inputs(run, rank).values():
        tensors = [tensor for _, tensor in seen if tensor.inner_counts]
        embedding = _embedding(modules, tensors)
        if embedding is None:
            continue
        row = str(embedding.settings["padding_idx"])
        num_steps = sum(row in tensor.inner_counts for tensor in tensors)
        inside = sum(tensor.inner_counts.get(row, 0) for tensor in tensors)
        if inside >= _MIN_COLLISIONS and 2 * num_steps >= len(tensors):
            return _padding_finding(embedding, row, tensors, seen[0][0], rank, inside)
    return None


def _embedding(modules: list[ModuleFacts], tensors: list[TensorFacts]) -> ModuleFacts | None:
    """Return the first embedding with a padding row that is large enough for these ids."""
    if not tensors:
        return None
    largest = max(tensor.max or 0.0 for tensor in tensors)
    for module in modules:
        size = module.settings.get("num_embeddings")
        is_large_enough = isinstance(size, int) and size > largest
        if is_large_enough and isinstance(module.settings.get("padding_idx"), int):
            return module
    return None


def _padding_finding(
    embedding: ModuleFacts, row: str, tensors: list[TensorFacts], step: int, rank: int, inside: int
) -> Finding:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts.update(tensor.counts)
    share = counts[row] / max(sum(counts.values()), 1)
    site = embedding.site
    return error(
        rule="padding-collision",
        confidence=0.85,
        step=step,
        rank=rank,
        phase="forward",
        site=site,
        parameter=f"{site}.weight" if not site.startswith("<") else None,
        title=f"padding_idx {row} is a real token",
        why=f"row {row} of {site} is never trained, because it is padding_idx; but {100 * share:.2g} % of the tokens "
        f"are {row}, {inside} of them between other tokens, where there is no padding",
        fix="give padding its own id that the tokenizer does not use, or leave padding_idx out",
        evidence=({"row": int(row), "share": share, "num_inside": inside},),
    )


@rule(
    Code(
        name="input-scale",
        means="An input is far from the size that initial values and learning rates assume, and reaches the first "
        "weights without normalization.",
        fix="Normalize it: `(x - mean) / std` with the values of the training set, or `x / 255` for raw pixels.",
        follows_from=("overflow", "domain-error", "masked-softmax", "nonfinite-update", "consumed-overflow"),
    ),
    order=980,
    checks="inputs of unusual size",
    needs=[needs.inputs],
)
@on_first_rank
def large_inputs(run: Run, rank: int) -> Finding | None:
    """Find a model input that is far larger than initial values assume, and is used without normalization."""
    for place, seen in model_inputs(run, rank).items():
        first = seen[0][1]
        if "float" not in first.dtype or len(first.shape) < 2 or _is_mask(seen):
            continue
        size = statistics.median(math.hypot(tensor.mean or 0.0, tensor.std or 0.0) for _, tensor in seen)
        if size >= LARGE and _meets_a_weight(run, rank, size, math.prod(first.shape)):
            return _large_finding(place, seen, size, rank)
    return None


@rule(
    Code(
        name="constant-input",
        means="An input is the same number everywhere, or the same for every sample, so nothing can be learned from "
        "it.",
        fix="Check what the dataset returns: a buffer that is never filled, a transform that clamps, the wrong column.",
    ),
    order=510,
    checks="constant inputs",
    needs=[needs.inputs],
)
@on_first_rank
def constant_inputs(run: Run, rank: int) -> Finding | None:
    """Find a model input that is the same number everywhere, or the same for every sample."""
    for places in _by_model(model_inputs(run, rank)).values():
        batch_size = next(iter(places.values()))[0][1].shape[:1]
        varying = [place for place, seen in places.items() if not _is_constant(run, rank, place, seen, batch_size)]
        names = list(places)
        if not varying and (_targets_differ(run, rank) or len(next(iter(places.values()))) == 1):
            return _constant_finding(names[0], places[names[0]], rank, weight=None)
        for place in names:
            weight = _unmoved_weight(run, rank) if _is_zero(places[place], batch_size) else None
            if weight is not None:
                return _constant_finding(place, places[place], rank, weight=weight)
    return None


def _is_mask(seen: Seen) -> bool:
    """Say whether it is an additive mask: 0 and a large negative number."""
    return all(tensor.max == 0.0 or tensor.num_nonfinite for _, tensor in seen)


def _meets_a_weight(run: Run, rank: int, size: float, count: int) -> bool:
    """Say whether large values reach the first product of the forward, or the input itself reaches any product.

    A model may rescale its input first, or use it as ids. If no step was recorded, assume that they do.
    """
    step = next(iter(run.steps), None)
    if step is None:
        return True
    events = sorted(run.iter_events(step=step, rank=rank, phase="forward"), key=lambda event: event.order)
    given = [event for event in events if bare_name(event.op) in _PRODUCTS and event.output.startswith("input")]
    if not given:
        return True
    first = [event for event in given if event.op_name == given[0].op_name and event.site == given[0].site]
    if _is_normalized(events, given[0]):
        return False
    if any(root_mean_square(event) >= LARGE / 2 for event in first):
        return True
    return any(
        event.num_elements == count and math.isclose(root_mean_square(event), size, rel_tol=0.5) for event in given
    )


def _is_normalized(events: Sequence[Event], product: Event) -> bool:
    """Say whether a norm reads the result of the first product: then the size of the input does not matter."""
    made = {
        e.hash for e in events if e.op == product.op and e.site == product.site and not e.output.startswith("input")
    }
    return any(bare_name(e.op) in _NORMS and e.output.startswith("input") and e.hash in made for e in events)


def _by_model(inputs: dict[str, list[tuple[int, TensorFacts]]]) -> dict[str, dict[str, Seen]]:
    found: dict[str, dict[str, Seen]] = {}
    for place, seen in inputs.items():
        found.setdefault(site_of(place), {})[place] = seen
    return found


def _is_one_number(tensor: TensorFacts) -> bool:
    return tensor.min is not None and tensor.min == tensor.max and not tensor.num_nonfinite


def _is_constant(run: Run, rank: int, place: str, seen: Seen, batch_size: tuple[int, ...]) -> bool:
    """Say whether an input is the same for all samples: one number, one row, or the same mask in each step."""
    if any(tensor.is_only_first for _, tensor in seen):
        return False
    if all(_is_one_number(tensor) for _, tensor in seen):
        return True
    if len(seen) > 1 and seen[0][1].shape[:1] != batch_size and len({tensor.hash for _, tensor in seen}) == 1:
        return True
    if any(tensor.num_nonfinite for _, tensor in seen):
        return False  # NaN is the same everywhere, and not what the data are
    hashes = sample_hashes(run, rank, place)
    return len(hashes) > len(seen) > 1 and len(set(hashes)) == 1


def _targets_differ(run: Run, rank: int) -> bool:
    targets = [target for batch in run.inputs(rank=rank) for target in targets_of(batch)]
    return not targets or len({target.hash for target in targets}) > 1 or any(bool(target.std) for target in targets)


def _is_zero(seen: Seen, batch_size: tuple[int, ...]) -> bool:
    first = seen[0][1]
    is_alike = len(first.shape) > 1 and first.shape[:1] == batch_size and "float" in first.dtype
    return is_alike and all(_is_one_number(tensor) and tensor.max == 0.0 for _, tensor in seen)


def _unmoved_weight(run: Run, rank: int) -> str | None:
    """Return the first weight whose gradient is 0 in every step: a weight multiplied by zeros learns nothing."""
    wide = {p.name for structure in run.structures(rank=rank) for p in structure.parameters if len(p.shape) > 1}
    histories = parameter_histories(run, rank, names=[name for name in wide if name])
    return next((name for name, history in histories.items() if _is_unmoved(history)), None)


def _is_unmoved(history: ParameterHistory) -> bool:
    shares = history.zero_share[~np.isnan(history.zero_share)]
    return bool(shares.size) and bool((shares == 1.0).all())


def _large_finding(place: str, seen: Seen, size: float, rank: int) -> Finding:
    reach = max(max(abs(tensor.min or 0.0), abs(tensor.max or 0.0)) for _, tensor in seen)
    std = statistics.median(tensor.std or 0.0 for _, tensor in seen)
    mean = statistics.median(tensor.mean or 0.0 for _, tensor in seen)
    return Finding(
        rule="input-scale",
        severity=Severity.ERROR if size >= VERY_LARGE else Severity.WARNING,
        confidence=0.9 if size >= VERY_LARGE else 0.7,
        step=seen[0][0],
        rank=rank,
        phase="forward",
        site=site_of(place),
        title=f"the input {place} is far too large",
        why=f"its values reach {format_short(reach)} (mean {format_short(mean)}, std {format_short(std)}) and reach "
        "the first weights without normalization; initial values and learning rates assume values around 1",
        fix="normalize the data: (x - mean) / std with the values of the training set, or x / 255 for raw pixels",
        evidence=({"place": place, "absmax": reach, "mean": mean, "std": std},),
    )


def _constant_finding(place: str, seen: Seen, rank: int, *, weight: str | None) -> Finding:
    first = seen[0][1]
    if _is_one_number(first):
        what = f"every element is {format_short(first.min or 0.0)} in all {plural(len(seen), 'observed step')}"
    else:
        what = f"every sample is the same in all {plural(len(seen), 'observed step')}"
    effect = f"{weight} has no other input and no gradient" if weight else "the output cannot depend on the data"
    return error(
        rule="constant-input",
        confidence=0.95,
        step=seen[0][0],
        rank=rank,
        phase="forward",
        site=site_of(place),
        parameter=weight,
        title=f"the input {place} is constant",
        why=f"{what}; {effect}",
        fix="check what the dataset returns: a sample that is never filled, a transform that clamps or zeroes "
        "everything, the wrong column",
        evidence=({"place": place, "value": first.min, "shape": list(first.shape)},),
    )
