"""What made a loss jump, its batch or the state of the training: the step again, with one of the two exchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from roundoff.record.sites import Sites
from roundoff.runs import JsonValue
from roundoff.watch.bench import Bench, cut_batch, mean_loss
from roundoff.watch.replay import Player
from roundoff.watch.snapshots import Snapshot
from roundoff.watch.state import Training
from roundoff.watch.step_tape import StepTape


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
        **_worst_sample(here),
    }


def _worst_sample(bench: Bench) -> dict[str, JsonValue]:
    """Find the sample with the largest loss by halving the batch, in eval mode, and how large it is by itself."""
    found: dict[str, JsonValue] = {"batch_size": bench.batch_size, "worst_sample": None, "worst_loss": None}
    if bench.batch_size is None:
        return found
    first, end, loss = 0, bench.batch_size, 0.0
    with contextlib.suppress(Exception):  # code of the user that takes batches of one size only
        while end - first > 1:
            middle = (first + end) // 2
            halves = [_loss_of(bench, slice(*bounds)) for bounds in ((first, middle), (middle, end))]
            first, end = (first, middle) if halves[0] >= halves[1] else (middle, end)
            loss = max(halves)
        found.update({"worst_sample": first, "worst_loss": loss})
    return found


def _loss_of(bench: Bench, part: slice) -> float:
    size = bench.batch_size or 0
    with bench.in_state():
        player = bench.play(forward_only=True, is_training=False, change=lambda x: cut_batch(x, size, part))
    return mean_loss(player) or 0.0


def _loss(bench: Bench, batch: StepTape) -> float | None:
    player = Player(forward_only=True)
    with bench.in_state():
        player.play(batch.entries)
    return mean_loss(player)
