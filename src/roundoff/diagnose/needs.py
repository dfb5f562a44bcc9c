"""What rules look at in a run: each need returns why a run lacks it, or None where it is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from roundoff.diagnose.loop_facts import model_inputs, targets_of, training_epochs
from roundoff.diagnose.rule import Need
from roundoff.runs import Metrics, ModuleFacts, Run
from roundoff.runs.records.probe import PROBE_TYPES, Probe


def some(find: Callable[[Run], object], missing: str) -> Need:
    """Need what `find` looks for; `missing` is the reason to give where it finds nothing."""
    return lambda run: None if find(run) else missing


def enough(count_in_rank: Callable[[Run, int], int], needed: int, one: str, several: str) -> Need:
    """Need this many of something on at least one rank."""

    def find(run: Run) -> str | None:
        most = max((count_in_rank(run, rank) for rank in run.ranks), default=0)
        have = "no" if not most else f"only {most}"
        return None if most >= needed else f"{have} {one if most == 1 else several}, at least {needed} needed"

    return find


def epochs(count: int) -> Need:
    """Need this many passes through the training DataLoader."""
    return enough(
        lambda run, rank: len(training_epochs(run, rank)), count, "epoch of a DataLoader", "epochs of a DataLoader"
    )


def losses(count: int) -> Need:
    """Need this many finite losses."""
    return enough(
        lambda run, rank: sum(each.loss is not None and math.isfinite(each.loss) for each in run.metrics(rank=rank)),
        count,
        "finite loss",
        "finite losses",
    )


def calls(kind: str, *, missing: str) -> Need:
    """Need a call of this kind."""
    return some(lambda run: any(call.call == kind for rank in run.ranks for call in run.calls(rank=rank)), missing)


def probe(kind: type[Probe], *, missing: str = "") -> Need:
    """Need the result of a probe."""
    name = next(name for name, each in PROBE_TYPES.items() if each is kind)
    return some(lambda run: run.probes(kind), missing or f"the {name} probe did not run, or gave no result")


def module(is_wanted: Callable[[ModuleFacts], object], missing: str) -> Need:
    """Need a module of this kind in a model."""
    return some(lambda run: any(map(is_wanted, _modules(run))), missing)


def _modules(run: Run) -> Iterator[ModuleFacts]:
    return (module for rank in run.ranks for look in run.structures(rank=rank) for module in look.modules)


def _metrics(run: Run) -> Iterator[Metrics]:
    return (metrics for rank in run.ranks for metrics in run.metrics(rank=rank))


several_ranks = some(lambda run: len(run.ranks) > 1, "the training ran on one rank")
recorded_steps = some(lambda run: run.steps or run.replayed_steps, "no step was recorded or replayed op by op")
recorded_first_step = some(lambda run: 0 in run.steps, "step 0 was not recorded op by op")
structure = some(
    lambda run: any(run.structures(rank=rank) for rank in run.ranks), "the run does not describe its model"
)
optimizer = some(
    lambda run: any(look.optimizers for rank in run.ranks for look in run.structures(rank=rank)),
    "no optimizer was seen",
)
measured_parameters = some(lambda run: run.parameters().num_rows, "no gradients or updates were measured")
inputs = some(lambda run: any(model_inputs(run, rank) for rank in run.ranks), "no model inputs were seen")
targets = some(
    lambda run: any(targets_of(batch) for rank in run.ranks for batch in run.inputs(rank=rank)),
    "no labels or targets were seen",
)
loss_scaling = some(
    lambda run: any(each.loss_scale not in (None, 1.0) for each in _metrics(run)), "the loss is not scaled"
)
optimizer_steps = calls("step", missing="no optimizer step was seen")
