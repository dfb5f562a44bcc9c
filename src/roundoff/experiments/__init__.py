"""Many trainings: sweeps, throughput, bisection, plans, and the processes that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roundoff.lazy_names import lazy_names

if TYPE_CHECKING:
    from roundoff.experiments.bisect.smallest import smallest_bad as smallest_bad
    from roundoff.experiments.bisect.smallest import smallest_wide as smallest_wide
    from roundoff.experiments.engine.scheduler import run_tasks as run_tasks
    from roundoff.experiments.sweep.definition import Sweep as Sweep
    from roundoff.experiments.sweep.definition import read_sweep as read_sweep
    from roundoff.experiments.sweep.sweep_folder import read_sweep_folder as read_sweep_folder
    from roundoff.experiments.sweep.sweep_folder import run_sweep as run_sweep
    from roundoff.experiments.sweep.sweep_rows import SweepRow as SweepRow

_HOMES = {
    "Sweep": "roundoff.experiments.sweep.definition",
    "SweepRow": "roundoff.experiments.sweep.sweep_rows",
    "read_sweep": "roundoff.experiments.sweep.definition",
    "read_sweep_folder": "roundoff.experiments.sweep.sweep_folder",
    "run_sweep": "roundoff.experiments.sweep.sweep_folder",
    "run_tasks": "roundoff.experiments.engine.scheduler",
    "smallest_bad": "roundoff.experiments.bisect.smallest",
    "smallest_wide": "roundoff.experiments.bisect.smallest",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
