"""What rules look at in a run: each function returns why a run lacks it, or None where it is there."""

from __future__ import annotations

import math

from roundoff.diagnose.batches import model_inputs, targets_of, training_epochs
from roundoff.diagnose.rule import Need
from roundoff.runs import Run
from roundoff.runs.records.probe import PROBE_TYPES, Probe


def several_ranks(run: Run) -> str | None:
    """Look for a second rank."""
    return None if len(run.ranks) > 1 else "the training ran on one rank"


def recorded_steps(run: Run) -> str | None:
    """Look for a step whose ops were recorded or replayed."""
    return None if run.steps or run.replayed_steps else "no step was recorded or replayed op by op"


def recorded_first_step(run: Run) -> str | None:
    """Look for the ops of step 0."""
    return None if 0 in run.steps else "step 0 was not recorded op by op"


def structure(run: Run) -> str | None:
    """Look for the description of models and optimizers that a watch writes."""
    return None if any(run.structures(rank=rank) for rank in run.ranks) else "the run does not describe its model"


def optimizer(run: Run) -> str | None:
    """Look for an optimizer."""
    looks = [look for rank in run.ranks for look in run.structures(rank=rank)]
    return None if any(look.optimizers for look in looks) else "no optimizer was seen"


def measured_parameters(run: Run) -> str | None:
    """Look for norms of parameters, gradients and updates."""
    return None if run.parameters().num_rows else "no gradients or updates were measured"


def inputs(run: Run) -> str | None:
    """Look for batches that went into a model."""
    return None if any(model_inputs(run, rank) for rank in run.ranks) else "no model inputs were seen"


def targets(run: Run) -> str | None:
    """Look for what a loss compares outputs with."""
    batches = [batch for rank in run.ranks for batch in run.inputs(rank=rank)]
    return None if any(targets_of(batch) for batch in batches) else "no labels or targets were seen"


def loss_scaling(run: Run) -> str | None:
    """Look for a loss scale."""
    metrics = [metric for rank in run.ranks for metric in run.metrics(rank=rank)]
    return None if any(metric.loss_scale not in (None, 1.0) for metric in metrics) else "the loss is not scaled"


def epochs(count: int) -> Need:
    """Look for this many passes through the training DataLoader."""

    def find(run: Run) -> str | None:
        most = max((len(training_epochs(run, rank)) for rank in run.ranks), default=0)
        return None if most >= count else _too_few(most, count, "epoch of a DataLoader", "epochs of a DataLoader")

    return find


def losses(count: int) -> Need:
    """Look for this many finite losses."""

    def find(run: Run) -> str | None:
        most = max((_num_losses(run, rank) for rank in run.ranks), default=0)
        return None if most >= count else _too_few(most, count, "finite loss", "finite losses")

    return find


def calls(kind: str, *, missing: str) -> Need:
    """Look for a call of this kind; `missing` is the reason to give without one."""

    def find(run: Run) -> str | None:
        has_call = any(call.call == kind for rank in run.ranks for call in run.calls(rank=rank))
        return None if has_call else missing

    return find


def probe(kind: type[Probe], *, missing: str = "") -> Need:
    """Look for the result of a probe; `missing` is the reason to give without one."""

    def find(run: Run) -> str | None:
        name = next(name for name, each in PROBE_TYPES.items() if each is kind)
        return None if run.probes(kind) else missing or f"the {name} probe did not run, or gave no result"

    return find


def _num_losses(run: Run, rank: int) -> int:
    return sum(metric.loss is not None and math.isfinite(metric.loss) for metric in run.metrics(rank=rank))


def _too_few(number: int, needed: int, one: str, several: str) -> str:
    have = "no" if not number else f"only {number}"
    return f"{have} {one if number == 1 else several}, at least {needed} needed"
