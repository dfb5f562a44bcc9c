"""The learning rate as a function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

_STEPS = ((0.8, 1e-3), (0.6, 1e-2), (0.3, 1e-1))
"""From this share of all steps on, this factor."""


def lr_at(step: int, *, peak: float, schedule: str, total_steps: int, warmup_steps: int) -> float:
    """Return the learning rate of a step, counted from 0.

    It rises linearly to `peak` over `warmup_steps`, then falls: 'step' by ten after 30, 60 and 80 % of all steps,
    'cosine' and 'linear' to 0 at the end, 'constant' not at all.

    >>> [round(lr_at(step, peak=1, schedule="linear", total_steps=6, warmup_steps=2), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "step":
        return peak * next((factor for share, factor in _STEPS if step >= share * total_steps), 1.0)
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if schedule == "linear":
        return peak * (1 - done)
    assert schedule == "constant", schedule
    return peak
