"""Steps in which something was not finite, with everything that the run knows about each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roundoff.diagnose.nonfinite.origin import MASKS, Liveness, OriginPlace, find_origin
from roundoff.diagnose.wording import format_short
from roundoff.errors import RunFolderError
from roundoff.runs import Anomaly, Metrics, Origin, ReplayInfo, Run, StepDetail, TensorFile, script_words
from roundoff.words import join_words

MAX_STEPS = 50
"""At most this many steps of a rank are examined; further bad steps say nothing new."""

_MIN_GROWING, _GROWN = 3, 10.0
"""A loss that grew this many times, and in each of the last steps, was exploding."""
_NOT_FINITE = ("loss", "gradient", "weight", "buffer")
_MASK_OPS = [f"aten.{name}{mark}" for name in sorted(MASKS) for mark in ("", "_")]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStep:
    """One step of one rank in which something was not finite."""

    step: int
    rank: int
    anomalies: tuple[Anomaly, ...]
    metrics: Metrics | None
    was_skipped: bool
    """Whether the optimizer's step was skipped, as loss scaling does."""
    was_undone: bool
    """Whether the watch undid the step, as `--on-anomaly skip` requests."""
    events: Run | None
    """The run that holds the step's events: its replay, or this run if it was recorded."""
    place: OriginPlace | None
    origin: Origin | None
    """The op caught with its inputs, if it is the one at `place`."""
    events_step: int
    """The step of those events: this one, or an earlier one whose replay broke although the step itself had not."""
    losses_before: tuple[tuple[int, float], ...] = ()
    """(step, loss) of the steps before it, in order."""
    replay_note: str | None = None
    """A note of the replay about itself, such as why it failed."""
    script: str = ""
    """The script with its arguments, to be typed after a command of ours."""

    @property
    def growth_before(self) -> str | None:
        """How the loss had grown by orders of magnitude up to the step before; None if it had not."""
        if len(self.losses_before) < _MIN_GROWING:
            return None
        first, least = min(self.losses_before, key=lambda pair: pair[1])
        grown = [pair for pair in self.losses_before if pair[0] >= first]
        last, loss = grown[-1]
        is_growing = sorted(pair[1] for pair in grown[-_MIN_GROWING:]) == [pair[1] for pair in grown[-_MIN_GROWING:]]
        if len(grown) < _MIN_GROWING or least <= 0 or loss < _GROWN * least or not is_growing:
            return None
        return f"from {format_short(least)} in step {first} to {format_short(loss)} in step {last}"

    def names_of(self, kind: str) -> list[str]:
        """Return the parameters or buffers that an anomaly of this kind was seen in."""
        return [anomaly.name for anomaly in self.anomalies if anomaly.kind == kind and anomaly.name]

    def has(self, kind: str) -> bool:
        """Say whether the watch saw an anomaly of this kind."""
        return any(anomaly.kind == kind for anomaly in self.anomalies)

    @property
    def is_faithful(self) -> bool:
        """Whether the events are of this step itself."""
        return self.events_step == self.step

    @property
    def is_refuted(self) -> bool:
        """Whether the metrics say that the step was fine although its replay was not: the fault came later.

        Code that depends on its own state, such as a counter, may do in a replay what it really did after the step.
        """
        if self.place is None or self.metrics is None or self.was_skipped:
            return False
        reached, seen = self.place.liveness, self.metrics
        pairs = [(reached.reaches_loss, seen.loss), (reached.num_bad_gradients > 0, seen.grad_norm)]
        pairs.append((reached.num_bad_weights > 0, seen.update_norm))
        return any(is_bad and value is not None and math.isfinite(value) for is_bad, value in pairs)

    @property
    def loss_is_bad(self) -> bool:
        """Whether the loss itself is not finite; a scaled one may be too large by design."""
        if self.metrics is not None and self.metrics.loss is not None:
            return not math.isfinite(self.metrics.loss)
        return self.has("loss") or (self.place is not None and self.place.liveness.reaches_loss)

    @property
    def gradients_are_bad(self) -> bool:
        """Whether any gradient is not finite."""
        return self.has("gradient") or (self.place is not None and self.place.liveness.num_bad_gradients > 0)

    @property
    def is_deliberate(self) -> bool:
        """Whether loss scaling tried a scale that was too large and skipped the step: then nothing is wrong."""
        return self.was_skipped and not self.loss_is_bad and not self.has("buffer") and not self.has("weight")

    @property
    def is_lasting(self) -> bool:
        """Whether weights are bad from here on, so that later steps say nothing new."""
        has_bad_weights = self.place is not None and self.place.liveness.num_bad_weights > 0
        is_bad = self.has("weight") or has_bad_weights or (self.gradients_are_bad and not self.was_skipped)
        return is_bad and not self.was_undone


def bad_steps(run: Run) -> list[BadStep]:
    """Return, rank by rank, the steps in which something was not finite, up to the one after which everything is.

    They are known from anomalies, from losses, or, in a run without a watch, from the recorded events. Replayed steps
    before the first of them are examined too: weights may have been bad before it showed, and the script may have
    raised an exception before the watch saw it.
    """
    return [bad for rank in run.ranks for bad in _of_rank(run, rank)]


def _of_rank(run: Run, rank: int) -> Iterator[BadStep]:
    metrics = {metric.step: metric for metric in run.metrics(rank=rank)}
    anomalies: dict[int, list[Anomaly]] = {}
    for _, anomaly in run.anomalies(rank=rank):
        if anomaly.kind in _NOT_FINITE:
            anomalies.setdefault(anomaly.step, []).append(anomaly)
    losses = {step for step, metric in metrics.items() if metric.loss is not None and not math.isfinite(metric.loss)}
    known = losses | set(anomalies)
    recorded = _recorded_bad_steps(run, rank)
    replayed = {step for step in run.replayed_steps if not known or step <= min(known)}
    calls = run.calls(rank=rank)
    skipped = {call.step for call in calls if call.call == "step" and call.detail_as(StepDetail).skipped}
    undone = {call.step for call in calls if call.call == "undone"}
    for step in sorted(known | recorded | replayed)[:MAX_STEPS]:
        bad = _examine(run, rank, step, anomalies.get(step, []), metrics.get(step), was_skipped=step in skipped)
        before = [(m.step, m.loss) for m in metrics.values() if m.step < step and m.loss is not None]
        bad = replace(bad, was_undone=step in undone, losses_before=tuple(before))
        if known and step in replayed - known and bad.is_refuted:
            first = min(known)
            bad = replace(bad, step=first, anomalies=tuple(anomalies.get(first, [])), metrics=metrics.get(first))
        if step in known or bad.place is not None:
            yield bad
            if bad.is_lasting:
                return


def _examine(
    run: Run, rank: int, step: int, anomalies: list[Anomaly], metrics: Metrics | None, *, was_skipped: bool
) -> BadStep:
    events, info = _run_with_events(run, step), _replay_info(run, rank, step)
    place = find_origin(events, step=step, rank=rank) if events is not None else None
    origin = events.origin(rank=rank) if events is not None else None
    return BadStep(
        step=step,
        events_step=step,
        rank=rank,
        anomalies=tuple(anomalies),
        metrics=metrics,
        was_skipped=was_skipped or (metrics is not None and metrics.skipped),
        was_undone=False,
        events=events,
        place=place,
        origin=origin if origin is not None and place is not None and _is_at(origin, place) else None,
        replay_note=info.note if info is not None else None,
        script=script_words(run.info),
    )


def _replay_info(run: Run, rank: int, step: int) -> ReplayInfo | None:
    return run.replay(step).replay_info(rank=rank) if step in run.replayed_steps else None


def _is_at(origin: Origin, place: OriginPlace) -> bool:
    there = (place.phase, place.site, place.bad.op_name, place.microbatch)
    return (origin.phase, origin.site, origin.op, origin.microbatch) == there


def _run_with_events(run: Run, step: int) -> Run | None:
    if step in run.replayed_steps:
        replay = run.replay(step)
        if step in replay.steps:
            return replay
    return run if step in run.steps else None


def _recorded_bad_steps(run: Run, rank: int) -> set[int]:
    """Return the recorded steps with a result or a batch that is not finite and not a mask."""
    table = run.events(rank=rank, columns=["step", "op", "output", "phase", "num_nan", "num_posinf", "num_neginf"])
    is_mask = table.texts("op").matches(lambda op: op in _MASK_OPS)
    is_wanted = table.texts("output").starts_with("output") & ~table.texts("phase").equals("eval")
    is_bad = (table.numbers("num_nan") > 0) | (table.numbers("num_posinf") > 0)
    is_bad |= (table.numbers("num_neginf") > 0) & ~is_mask
    return set(table.take(is_wanted & is_bad)["step"].unique())


def spread_of(bad: BadStep, place: OriginPlace) -> str:
    """Return sentences about what the bad value reaches, and until when everything was fine."""
    noun = "NaN" if place.bad.num_nan else "infinity"
    reached = _reached_places(place.liveness, is_update=place.phase == "optimizer")
    sentences = [f"The {noun} reaches {join_words(reached)}."] if reached else []
    if not place.liveness.reaches_loss and place.liveness.num_bad_gradients and place.phase == "forward":
        sentences.append("The loss does not show it: a value masked in forward becomes 0 times NaN in backward.")
    if bad.was_skipped:
        sentences.append("The optimizer's step was skipped, so the weights did not change.")
    elif bad.was_undone:
        sentences.append("The step was undone: the training continued as if its batch had not existed.")
    elif bad.growth_before is not None:
        sentences.append(f"It is the end of an explosion: the loss had grown {bad.growth_before}.")
    elif bad.step > 0:
        sentences.append(f"Loss and weights were fine up to step {bad.step - 1}.")
    return " ".join(sentences)


def _reached_places(liveness: Liveness, *, is_update: bool) -> list[str]:
    found = ["the loss"] if liveness.reaches_loss else []
    if liveness.num_bad_gradients:
        found.append(_share(liveness.num_bad_gradients, liveness.num_gradients, "gradient"))
    if is_update and liveness.num_bad_weights:
        found.append(_share(liveness.num_bad_weights, liveness.num_weights, "weight"))
    if liveness.reaches_statistics:
        found.append("running statistics")
    return found


def _share(count: int, total: int, thing: str) -> str:
    if count == total:
        return f"all {total} {thing}s" if total > 1 else f"the only {thing}"
    return f"{count} of {total} {thing}s"


def sample_of(bad: BadStep) -> int | None:
    """Return the sample whose result is bad in the caught op; None if its first dimension is not the batch.

    Attention may fold heads into that dimension: then it is a multiple of the batch size, with the heads of a sample
    next to each other.
    """
    if bad.origin is None or bad.place is None or not bad.origin.bad_index or not bad.place.batch_size:
        return None
    length, size = bad.place.bad.shape[0], bad.place.batch_size
    return bad.origin.bad_index[0] // (length // size) if size > 1 and length % size == 0 else None


def bad_index_in_batch(bad: BadStep) -> tuple[str, tuple[int, ...]] | None:
    """Return key and index of the first value of the saved batch that is not finite; None without one."""
    if bad.events is None:
        return None
    try:
        file = bad.events.replay_batch(rank=bad.rank)
    except RunFolderError:
        return None
    for key in sorted(file):
        index = _first_bad(_as_floats(file, key))
        if index is not None:
            return key, index
    return None


def _as_floats(file: TensorFile, key: str) -> Any:
    if not file.entry(key).dtype.startswith(("F", "BF")):
        return np.zeros(())
    return file[key] if file.entry(key).dtype in ("F16", "F32", "F64") else file.torch(key).float().numpy()


def _first_bad(values: Any) -> tuple[int, ...] | None:
    places = np.argwhere(~np.isfinite(values) & ~np.isneginf(values))
    return tuple(int(i) for i in places[0]) if len(places) else None
