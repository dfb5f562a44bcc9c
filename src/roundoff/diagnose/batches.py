"""What one rank read: the inputs of models, the targets, and the epochs they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from roundoff.runs import BatchFacts, EpochDetail, Run, TensorFacts

CLASSIFIES = ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss", "nll_loss_nd")
"""Criteria whose targets are class indices."""
ASKS_YES_OR_NO = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "BCELoss", "BCEWithLogitsLoss"
)  # fmt: skip
"""Criteria whose targets are probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One pass of the training through its DataLoader."""

    first_step: int
    end_step: int
    """The first step that does not belong to it."""
    detail: EpochDetail


def model_inputs(run: Run, rank: int) -> dict[str, list[tuple[int, TensorFacts]]]:
    """Return (step, tensor) of the model inputs, by place and in order, without the labels of Hugging Face models."""
    sites = {module.site for structure in run.structures(rank=rank) for module in structure.modules}
    found: dict[str, list[tuple[int, TensorFacts]]] = {}
    for batch in run.inputs(rank=rank):
        for tensor in batch.tensors:
            if not tensor.is_target and not _is_label(tensor) and site_of(tensor.place) in sites:
                found.setdefault(tensor.place, []).append((batch.step, tensor))
    return found


def first_input(run: Run, rank: int) -> tuple[str, list[tuple[int, TensorFacts]]] | None:
    """Return place and (step, tensor) of the first input of the first model; None without one."""
    return next(iter(model_inputs(run, rank).items()), None)


def targets_of(batch: BatchFacts) -> list[TensorFacts]:
    """Return the targets of a step: those of a criterion, or the labels passed to a Hugging Face model."""
    return list(batch.targets) or [tensor for tensor in batch.tensors if tensor.is_target or _is_label(tensor)]


def training_epochs(run: Run, rank: int) -> list[Epoch]:
    """Return the passes of the DataLoader that the training draws from, in order; empty if it has none.

    That is the loader whose iterator was created last before the first backward. An epoch may begin in the step in
    which the one before it ended: a step closes at the next forward.
    """
    calls = run.calls(rank=rank)
    before = next((place for place, call in enumerate(calls) if call.call == "backward"), len(calls))
    loaders = [call.detail_as(EpochDetail).loader for call in calls[:before] if call.call == "epoch"]
    if not loaders:
        return []
    begins: list[tuple[int, EpochDetail]] = []
    stepped = -1
    for call in calls:
        if call.call == "step":
            stepped = call.step
        elif call.call == "epoch" and call.detail_as(EpochDetail).loader == loaders[-1]:
            begins.append((call.step + (stepped == call.step), call.detail_as(EpochDetail)))
    metrics = run.metrics(rank=rank)
    last = max(calls[-1].step, metrics[-1].step if metrics else 0)
    ends = [step for step, _ in begins[1:]] + [last + 1]
    return [
        Epoch(first_step=step, end_step=end, detail=detail)
        for (step, detail), end in zip(begins, ends, strict=True)
        if end > step
    ]


def _is_label(tensor: TensorFacts) -> bool:
    return tensor.place.endswith(":labels")


def site_of(place: str) -> str:
    """Return the site of a place: `<model>` of `<model>[0]` and of `<model>:mask`."""
    site, mark, _ = place.rpartition("[")
    return site if mark else place.rpartition(":")[0]


def sample_hashes(run: Run, rank: int, place: str, *, epoch: Epoch | None = None) -> list[int]:
    """Return the hashes of the samples at a place, in order: all of them, or those of an epoch."""
    steps = None if epoch is None else range(epoch.first_step, epoch.end_step)
    table = run.hashes(step=steps, rank=rank)
    is_wanted = pc.and_(pc.equal(table["kind"], "sample"), pc.equal(table["name"], place))
    hashes: list[int] = table["hash"].filter(is_wanted).to_pylist()
    return hashes
