"""Which of the columns of a log is the loss, and which the step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from roundoff.errors import CompareError

_LOSSES = (
    "loss",
    "train_loss",
    "training_loss",
    "loss_train",
    "train_loss_step",
    "loss_step",
    "train_train_loss",
    "total_loss",
    "train_total_loss",
)
_STEPS = ("step", "global_step", "train_global_step", "_step", "iteration", "iter", "train_step", "batch", "epoch")
_OTHERS = re.compile(r"(^|_)(val|valid|validation|eval|evaluation|test|dev|scale)(_|$)|_min$|_max$")
"""Losses of an evaluation, the scale of a loss, and the extremes beside a mean."""


def loss_column(names: Sequence[str], *, chosen: str | None, path: Path) -> str:
    """Return the column of the loss; a `CompareError` lists the columns where none, or no single one, can be it."""
    if chosen is not None:
        if chosen not in names:
            raise _no_column(f"'{path}' has no column '{chosen}'.", names)
        return chosen
    plain = {_plain(name): name for name in reversed(names)}
    for known in _LOSSES:
        if known in plain:
            return plain[known]
    candidates = [name for name in names if "loss" in _plain(name) and not _OTHERS.search(_plain(name))]
    if not candidates and "value" in plain:
        return plain["value"]
    if len(candidates) != 1:
        found = f"several columns could be the loss: {', '.join(candidates)}" if candidates else ""
        raise _no_column(f"'{path}' does not say which column is the loss.", names, found=found)
    return candidates[0]


def step_column(names: Sequence[str]) -> str | None:
    """Return the column of the step, or None.

    >>> step_column(["Wall time", "Step", "Value"])
    'Step'
    """
    plain = {_plain(name): name for name in reversed(names)}
    return next((plain[known] for known in _STEPS if known in plain), None)


def _plain(name: str) -> str:
    """Return a name as others would write it: `train/Loss` is train_loss."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower())


def _no_column(what: str, names: Sequence[str], *, found: str = "") -> CompareError:
    listed = ", ".join(f"'{name}'" for name in names[:20]) + (", ..." if len(names) > 20 else "")
    return CompareError.explain(
        what,
        why=f"{found or (f'its columns are {listed}' if listed else 'it has no column of numbers')}.",
        fix="name the column: --column NAME",
    )
