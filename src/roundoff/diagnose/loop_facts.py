"""What the loop of one rank did: its calls step by step, the inputs and targets it read, and its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from roundoff.runs import BatchFacts, Call, EpochDetail, Run, SchedulerDetail, StepDetail, TensorFacts

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


def first_inputs(run: Run) -> Iterator[tuple[int, str, list[tuple[int, TensorFacts]]]]:
    """Yield the ranks that have inputs, each with place and (step, tensor) of the first input of its first model."""
    for rank in run.ranks:
        for place, seen in list(model_inputs(run, rank).items())[:1]:
            yield rank, place, seen


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
    is_wanted = table.texts("kind").equals("sample") & table.texts("name").equals(place)
    hashes: list[int] = table.numbers("hash")[is_wanted].tolist()
    return hashes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """The calls of one step, in order."""

    step: int
    calls: tuple[Call, ...]

    def calls_of(self, kind: str) -> list[Call]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.call == kind]


def loop_steps(run: Run, rank: int) -> list[LoopStep]:
    """Return the steps whose calls were recorded: the first hundred, then those that differ from the one before."""
    return [
        LoopStep(step=step, calls=tuple(calls)) for step, calls in groupby(run.calls(rank=rank), lambda call: call.step)
    ]


def rates(call: Call) -> list[float]:
    """Return the learning rates of a step or scheduler call."""
    rates = call.detail.lr if isinstance(call.detail, StepDetail | SchedulerDetail) else None
    return [rate for rate in rates or () if rate is not None]
