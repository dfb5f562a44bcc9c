"""What made a loss jump, its batch or the state of the training: the step again, with one of the two exchanged."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.record.sites import Sites
from roundoff.runs import JsonValue
from roundoff.watch.bench import Bench, mean_loss
from roundoff.watch.replay import Player
from roundoff.watch.snapshots import Snapshot
from roundoff.watch.state import Training
from roundoff.watch.tape import StepTape


def spike_probe(
    training: Training, snapshot: Snapshot, tapes: Sequence[StepTape], sites: Sites
) -> dict[str, JsonValue] | None:
    """Play the last step with the batch of the step before it, and in the state before that step.

    None where the snapshot leads to nothing but the step itself.
    """
    if len(tapes) < 2:
        return None
    here, earlier = Bench(training, snapshot, tapes, sites), Bench(training, snapshot, tapes[:-1], sites)
    return {
        "probe": "spike",
        "loss": _loss(here, tapes[-1]),
        "other_batch": _loss(here, tapes[-2]),
        "earlier_state": _loss(earlier, tapes[-1]),
    }


def _loss(bench: Bench, batch: StepTape) -> float | None:
    player = Player(forward_only=True)
    with bench.in_state():
        player.play(batch.entries)
    return mean_loss(player)
