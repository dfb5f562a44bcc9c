"""How far each step moved the weights, measured over all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roundoff.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """One step that was measured."""

    step: int
    weights: float
    """Norm of all parameters after it."""
    update: float
    gradient: float

    @property
    def ratio(self) -> float:
        """The update against the weights."""
        return self.update / self.weights if self.weights else 0.0


def movements(run: Run, rank: int) -> list[Movement]:
    """Return the measured steps in order; parameters that are not finite leave theirs out."""
    table = run.parameters(rank=rank)
    if not table.num_rows:
        return []
    steps = table["step"].to_numpy()
    known, places = np.unique(steps, return_inverse=True)
    norms = {}
    for name in ("l2", "update_l2", "grad_l2"):
        values = np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
        squares = np.where(np.isnan(values), 0.0, values) ** 2
        norms[name] = np.sqrt(np.bincount(places, weights=squares))
    rows = np.stack(list(norms.values()))
    is_finite = np.isfinite(rows).all(axis=0)
    finite = zip(known[is_finite].tolist(), *rows[:, is_finite].tolist(), strict=True)
    return [Movement(step=step, weights=l2, update=update, gradient=grad) for step, l2, update, grad in finite]
