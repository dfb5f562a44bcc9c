"""How a training is watched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from roundoff.replay.investigator import OnAnomaly

ON_ANOMALY: tuple[OnAnomaly, ...] = get_args(OnAnomaly)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How a training is watched."""

    budget: float = 0.02
    """The share of the training's time that watching may take; what must be done at any price is exempt."""
    every_step: bool = False
    """Measure every step, whatever it costs."""
    on_anomaly: OnAnomaly = "report"
    """report: replay, note and go on; stop: end the training; skip: undo the step and go on with the next batch."""
    snapshot_bytes: int | None = None
    """The most memory that snapshots, tapes and replays may take; None for a quarter of what is free."""
    recorded_steps: tuple[int, ...] = (0, 1)
    """Steps whose ops are recorded, in a replay."""
    full_steps: int = 20
    """This many steps at the start are measured in full."""
    probe_seconds: float = 10.0
    """How long probes may take at the end."""
    max_replays: int = 3
    """At most this many anomalies are replayed."""
    kept_batches: int = 2
    """Save a few samples of this many first batches in the run; 0 saves none."""
    stores_data: bool = True
    """Whether samples, the batch of a bad step and other tensors may be stored in the run."""
    tensorboard: Path | None = None
    """Write scalars and histograms for TensorBoard into this folder, too."""
    ops: bool = False
    """Note every op in the flight recorder."""
