"""Experiments on a snapshot whose results are written into the run: the step again, with one thing changed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from roundoff.record.source import Sources
from roundoff.runs import JsonValue, RunWriter
from roundoff.watch import replay as replaying
from roundoff.watch.bench import Bench, cut_batch, mean_loss
from roundoff.watch.mixing import batch_mixing
from roundoff.watch.random_ops import noting_random_ops
from roundoff.watch.wide import direction, wide

_OVERFIT_STEPS = 40
Probe = Callable[[Bench], dict[str, JsonValue] | None]


class Probes:
    """Runs the probes on one step, within an allowance of time, and writes down what they give."""

    def __init__(self, writer: RunWriter, *, seconds: float) -> None:
        self._writer = writer
        self._seconds = seconds

    def run(self, bench: Bench, *, is_suspicious: bool) -> None:
        """Run one probe after another as long as time allows; one that fails is left out.

        Args:
            bench: the step.
            is_suspicious: the loss did not go down: also see whether one batch can be learned.
        """
        began = time.monotonic()
        exact: list[Probe] = [] if bench.rounds_on_purpose else [batch_mixing, direction]
        probes: list[Probe] = [_eval_mode, _half_batch, *exact, wide]
        if is_suspicious:
            probes.insert(2, lambda bench: _overfit(bench, until=began + self._seconds))
        for probe in probes:
            if time.monotonic() - began > self._seconds:
                self._writer.note(f"Probes were cut short after {self._seconds:g} s.")
                return
            try:
                found = probe(bench)
            except Exception:  # code of the user that takes only what it is used to
                continue
            if found is not None:
                self._writer.write_probe({"step": bench.tape.step, **found})


def _half_batch(bench: Bench) -> dict[str, JsonValue] | None:
    """Play the step in eval mode with each half of the batch: the mean of a mean stays, a sum halves."""
    size = bench.batch_size
    if size is None or size < 4:
        return None
    halves: list[JsonValue] = []
    for part in (slice(0, size // 2), slice(size // 2, size)):
        with bench.in_state():
            player = bench.play(
                forward_only=True, is_training=False, change=lambda x, part=part: cut_batch(x, size, part)
            )
            halves.append(mean_loss(player))
    with bench.in_state():
        whole = mean_loss(bench.play(forward_only=True, is_training=False))
    return {"probe": "half-batch", "loss": whole, "halves": halves}


def _eval_mode(bench: Bench) -> dict[str, JsonValue] | None:
    """Play the same batch in train mode and, twice, in eval mode."""
    with bench.in_state():
        train = mean_loss(bench.play(forward_only=True))
    sources = Sources(stands_in_for=replaying.__file__)
    with bench.in_state(), noting_random_ops(bench.sites, sources) as random_ops:
        once = mean_loss(bench.play(forward_only=True, is_training=False, sources=sources))
        drawn: list[JsonValue] = [*random_ops]  # taken here: a list that grows inside is set back with everything else
    with bench.in_state():
        torch.manual_seed(1)
        again = mean_loss(bench.play(forward_only=True, is_training=False, keeps_generators=False))
    return {
        "probe": "eval-mode",
        "train_loss": train,
        "eval_loss": once,
        "eval_again": again,
        "random_ops": drawn,
    }


def _overfit(bench: Bench, *, until: float) -> dict[str, JsonValue] | None:
    """Take the step again and again with the same batch: whatever can learn learns that."""
    losses: list[JsonValue] = []
    with bench.in_state():
        while len(losses) < _OVERFIT_STEPS and time.monotonic() < until:
            losses.append(mean_loss(bench.play()))
    return {"probe": "overfit", "losses": losses} if len(losses) > 1 else None
