"""Compares the course of two trainings after a seam, step by step: learning rate, batches, losses."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roundoff.compare.resume.compared_part import ComparedPart, ResumePart, as_before, lost, unknown
from roundoff.compare.resume.seam import Seam
from roundoff.runs import EpochDetail, Metrics, Run, StepDetail
from roundoff.words import join_words, plural

_NUM_RATES = 10
"""The learning rates of so many steps are compared: later on a schedule may depend on the losses."""
_MAX_SHIFT = 3
"""A step counter that is wrong by more is not taken for one."""
_NUM_BATCHES = 4
_MAX_CHANGES = 3
"""Where the run went no further than its checkpoint, the rate may have changed by so many times its last change."""

_Batches = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossDrift:
    """How the losses after a seam compare."""

    num_steps: int
    num_identical: int
    first_different: int | None
    """The first step of the run whose loss differs; None if none does."""
    reference: float
    candidate: float
    """The losses of that step, or of the first one."""
    largest_relative: float
    early_relative: float
    """The largest relative difference, and that of the first steps."""

    @property
    def is_identical(self) -> bool:
        """Whether every loss is the same, bit for bit."""
        return self.num_identical == self.num_steps


def loss_drift(seam: Seam, run: Sequence[Metrics], resumed: Sequence[Metrics]) -> LossDrift | None:
    """Compare the losses from the seam on; None if no step of both has one."""
    known = {line.step: line.loss for line in run if line.loss is not None}
    pairs = [
        (seam.step + line.step, known[seam.step + line.step], line.loss)
        for line in resumed
        if line.loss is not None and seam.step + line.step in known
    ]
    if not pairs:
        return None
    different = [pair for pair in pairs if not _same(pair[1], pair[2])]
    relative = {step: _relative(first, second) for step, first, second in pairs}
    shown = (different or pairs)[0]
    return LossDrift(
        num_steps=len(pairs),
        num_identical=len(pairs) - len(different),
        first_different=different[0][0] if different else None,
        reference=shown[1],
        candidate=shown[2],
        largest_relative=max(relative.values()),
        early_relative=max(list(relative.values())[:_NUM_BATCHES]),
    )


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _relative(first: float, second: float) -> float:
    if _same(first, second):
        return 0.0
    difference = abs(second - first)
    return difference / abs(first) if math.isfinite(difference) and first else math.inf


# -- learning rate -----------------------------------------------------------------------------------------------------


def rate_shift(seam: Seam, run: Sequence[Metrics], resumed: Sequence[Metrics]) -> int | None:
    """Return by how many steps the learning rate is ahead of the run's (behind it, if negative).

    0 if it is the same; None if it is that of no step nearby, or not known.
    """
    first, second = _rates(run), _rates(resumed)
    wanted = [second[step] for step in range(_NUM_BATCHES) if step in second]
    for shift in sorted(range(-_MAX_SHIFT, _MAX_SHIFT + 1), key=abs):
        there = [first.get(seam.step + shift + step) for step in range(len(wanted))]
        if wanted and there == wanted:
            return shift
    return None


def schedule_part(seam: Seam, run: Run, resumed: Run, *, rank: int = 0) -> ComparedPart:
    """Compare the learning rates of the first steps, and how far the schedulers are."""
    part = ResumePart.SCHEDULE
    first, second = _rates(run.metrics(rank=rank)), _rates(resumed.metrics(rank=rank))
    common = [step for step in range(_NUM_RATES) if step in second and seam.step + step in first]
    moved = _moved_schedules(seam)
    if not common:
        return _without_steps(seam, first, second, moved)
    different = next((step for step in common if first[seam.step + step] != second[step]), None)
    at_seam = _rates_of_calls(run, seam.step, rank), _rates_of_calls(resumed, 0, rank)
    if different is None and not moved and (None in at_seam or at_seam[0] == at_seam[1]):
        return as_before(part, f"the same in {plural(len(common), 'step')}")
    fix = "save scheduler.state_dict() and load it after the optimizer's, or compute the rate from the restored step"
    if different is None:
        text = f"the schedule was not restored: {join_words(moved)}"
        return lost(part, text, fix=fix, schedules=list(moved))
    step, was, now = seam.step + different, first[seam.step + different], second[different]
    if different == 0 and at_seam[0] and at_seam[1] and at_seam[0] != at_seam[1]:
        was, now = at_seam[0][0], at_seam[1][0]
    is_restart = seam.step > 0 and all(first.get(step) == second[step] for step in common[different:][:_NUM_BATCHES])
    again = "starts again as at step 0" if is_restart else f"was not restored at step {step}"
    text = f"the learning rate {again}: {now:.6g} against {was:.6g}"
    if is_restart and (different or at_seam[0] == at_seam[1]):
        text += f" after step {step}"
    if moved:
        text += f"; {join_words(moved)}"
    return lost(part, text, fix=fix, step=step, was=was, now=now, schedules=list(moved))


def _rates(metrics: Sequence[Metrics]) -> dict[int, float]:
    return {line.step: line.lr for line in metrics if line.lr is not None}


def _rates_of_calls(run: Run, step: int, rank: int) -> tuple[float, ...] | None:
    """Return the learning rates with which an optimizer took its step, if that was written."""
    details = (call.detail for call in run.calls(rank=rank) if call.step == step)
    return next((detail.lr for detail in details if isinstance(detail, StepDetail) and detail.lr), None)


def _moved_schedules(seam: Seam) -> list[str]:
    """Say which schedulers are not where they were; one step further is right where the run had only saved."""
    if seam.reference is None or seam.candidate is None:
        return []
    tolerated = 1 if seam.is_as_saved else 0
    found = []
    for name, position in seam.reference.schedules.items():
        other = seam.candidate.schedules.get(name)
        if isinstance(position, int) and isinstance(other, int) and abs(position - other) > tolerated:
            found.append(f"{name} is at {other}, where the run was at {position}")
    return found


def _without_steps(seam: Seam, first: dict[int, float], second: dict[int, float], moved: list[str]) -> ComparedPart:
    """Compare the rates where the run went no further than its checkpoint."""
    part = ResumePart.SCHEDULE
    fix = "save scheduler.state_dict() and load it after the optimizer's, or compute the rate from the restored step"
    last = [first[step] for step in sorted(first) if step < seam.step][-_NUM_RATES:]
    if not last or not second:
        return unknown(part, "the run has no step with a learning rate near the seam")
    now = second[min(second)]
    changes = [abs(b - a) for a, b in itertools.pairwise(last)]
    if abs(now - last[-1]) > _MAX_CHANGES * max(changes, default=0.0) + 1e-12 * abs(last[-1]):
        is_restart = now == first.get(0)
        how = "starts again as at step 0" if is_restart else f"jumps at step {seam.step}"
        text = f"the learning rate {how}: {now:.6g}, after {last[-1]:.6g} in the step before"
        return lost(part, "; ".join([text, *moved]), fix=fix, was=last[-1], now=now)
    if moved:
        return lost(part, f"the schedule was not restored: {join_words(moved)}", fix=fix, schedules=list(moved))
    return as_before(part, f"goes on from {last[-1]:.6g} with {now:.6g}")


# -- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShift:
    """Which batches of the run a resumed run began with."""

    num_compared: int
    num_equal: int
    """Of the first steps of both."""
    shift: int | None
    """By how many steps the batches are ahead of the run's (behind, if negative); None if they are none of them."""
    num_matched: int = 0
    """How many batches, from the first one on, are those of the run, shifted so."""


def data_shift(seam: Seam, run: Run, resumed: Run, *, rank: int = 0) -> DataShift | None:
    """Find the first batches of the resumed run among those of the run; None if none can be compared."""
    first, second = batches_of(run, rank), batches_of(resumed, rank)
    common = [
        step for step in sorted(second)[: 2 * _NUM_BATCHES] if _can_compare(first.get(seam.step + step), second[step])
    ]
    equal = [step for step in common if _are_equal(first[seam.step + step], second[step])]
    if common and len(equal) == len(common):
        return DataShift(num_compared=len(common), num_equal=len(equal), shift=0, num_matched=len(equal))
    votes: Counter[int] = Counter()
    for step, batch in second.items():
        votes.update(other - step for other, known in first.items() if _are_equal(known, batch))
    if not votes and not common:
        return None
    shift = None
    if votes:
        most = max(votes.values())
        shift = min((at for at, num in votes.items() if num == most), key=lambda at: abs(at - seam.step)) - seam.step
    if not common and shift == 0:
        return None
    num_matched = 0 if shift is None else _num_matched(first, second, seam.step + shift)
    return DataShift(num_compared=len(common), num_equal=len(equal), shift=shift, num_matched=num_matched)


def _num_matched(first: _Batches, second: _Batches, begins: int) -> int:
    """Count the batches, from the first one on, that are those of the run from a step on."""
    steps = itertools.takewhile(lambda step: _are_equal(first.get(begins + step, {}), second[step]), sorted(second))
    return len(list(steps))


def batches_of(run: Run, rank: int) -> _Batches:
    """Return, by step, the hashes of what models were given, by place."""
    found: dict[int, dict[str, int]] = {}
    for facts in run.inputs(rank=rank):
        found[facts.step] = {x.place: int(x.hash, 16) for x in facts.tensors if x.hash and not x.is_target}
    table = run.hashes(rank=rank)
    table = table.take(table.texts("kind").equals("batch"))
    for step, name, number in zip(*(table[name].to_list() for name in ("step", "name", "hash")), strict=True):
        found.setdefault(step, {})[name] = number
    return found


def _can_compare(first: Mapping[str, int] | None, second: Mapping[str, int]) -> bool:
    return first is not None and bool(first.keys() & second.keys())


def _are_equal(first: Mapping[str, int], second: Mapping[str, int]) -> bool:
    common = first.keys() & second.keys()
    return bool(common) and all(first[place] == second[place] for place in common)


def data_part(seam: Seam, run: Run, found: DataShift | None, *, rank: int = 0) -> ComparedPart:
    """Say whether the resumed run goes on with the batch that comes next."""
    part = ResumePart.DATA
    if found is None:
        return unknown(
            part, "no batch of the run after the seam is known, and no other one is among those of the resumed run"
        )
    if found.num_compared and found.num_equal == found.num_compared:
        return as_before(part, f"the batches of {plural(found.num_compared, 'step')} are the same")
    fix = "save how far the epoch is and the sampler's state, and skip the batches that were used already"
    numbers = {"shift": found.shift, "num_equal": found.num_equal, "num_compared": found.num_compared}
    if found.shift is None or found.shift == 0:
        text = f"the batches are others: step {seam.step} gets another batch than in the run"
        return lost(part, text, fix=f"{fix}; restore the generators that the order is drawn from", **numbers)
    begins = seam.step + found.shift
    if begins == 0:
        text = f"the sampler starts again from the first batch: {_describe_matches(found, begins)}"
    elif begins in _epoch_starts(run, rank) and begins < seam.step:
        text = f"the sampler starts the epoch again: {_describe_matches(found, begins)}"
    else:
        way = "behind" if found.shift < 0 else "ahead"
        far = plural(abs(found.shift), "batch", "batches")
        text = f"the data is {far} {way}: step {seam.step} gets the batch of step {begins}"
    return lost(part, text, fix=fix, begins=begins, num_matched=found.num_matched, **numbers)


def _describe_matches(found: DataShift, begins: int) -> str:
    if found.num_matched <= 1:
        return f"the first batch is that of step {begins}"
    return f"the first {found.num_matched} batches are those of steps {begins} to {begins + found.num_matched - 1}"


def _epoch_starts(run: Run, rank: int) -> set[int]:
    """Return the steps that may be the first of a pass through a loader: its call comes before the step opens."""
    calls = [call.step for call in run.calls(rank=rank) if isinstance(call.detail, EpochDetail)]
    return {step + after for step in calls for after in (0, 1)}


def step_part(seam: Seam, shift: int) -> ComparedPart:
    """Say that the step counter was not restored: batches and learning rate are those of another step."""
    way = "behind" if shift < 0 else "ahead"
    text = (
        f"the step counter is {abs(shift)} {way}: step {seam.step} trains with the batch and the learning rate of "
        f"step {seam.step + shift}"
    )
    fix = "save the number of the next step, or add 1 to that of the last one when it is loaded"
    return lost(ResumePart.STEP, text, fix=fix, shift=shift)
