"""Data sets that change under the training: a transform writes into what it was given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from roundoff.diagnose.batches import Epoch, training_epochs
from roundoff.diagnose.numbers import short
from roundoff.runs import Finding, Run, Severity


def mutated_datasets(run: Run) -> list[Finding]:
    """Find a data set whose arrays are other numbers in the same memory whenever an epoch begins."""
    for rank in run.ranks:
        epochs = training_epochs(run, rank)
        for one, other in itertools.pairwise(epochs):
            for name, before in _arrays(one).items():
                after = _arrays(other).get(name)
                if after is not None and _is_edited(before, after):
                    return [_finding(name, before, after, other.first_step, rank, len(epochs))]
    return []


def _arrays(epoch: Epoch) -> dict[str, Mapping[str, Any]]:
    return {entry["name"]: entry for entry in epoch.detail.get("content") or ()}


def _is_edited(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Say whether numbers were changed in place; a cache that was empty and an order that was shuffled are none."""
    if before["hash"] == after["hash"] or before.get("address") != after.get("address"):
        return False
    was_empty = not before["mean"] and not before["std"]
    is_shuffled = _is_close(before["mean"], after["mean"]) and _is_close(before["std"], after["std"])
    return not was_empty and not is_shuffled


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * (abs(one) + abs(other))


def _finding(
    name: str, before: Mapping[str, Any], after: Mapping[str, Any], step: int, rank: int, num_epochs: int
) -> Finding:
    what = [f"{key} {short(before[key])} became {short(after[key])}" for key in ("mean", "std")]
    return Finding(
        rule="dataset-mutated",
        severity=Severity.ERROR,
        confidence=0.9 if num_epochs > 2 else 0.8,
        step=step,
        rank=rank,
        title=f"the data set changes while it is read ({name})",
        why=f"when the next epoch began with step {step}, the same memory held other numbers: {', '.join(what)}; "
        "whoever reads a sample writes into the data set, and the next epoch trains on something else",
        fix="work on a copy: x = x.clone() (or x.copy()) first in __getitem__ and in transforms, and x = x - mean "
        "instead of x -= mean",
        evidence=({"name": name, "before": dict(before), "after": dict(after)},),
    )
