"""Which recorded steps a page shows, and how many of their results, so that it stays small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundoff.diagnose.flow import recorded_steps
from roundoff.diagnose.run_view import RunView
from roundoff.runs import Run

MAX_STEPS = 100
MAX_RESULTS = 25_000
"""Of all steps together; about 50 bytes each."""
MAX_RESULTS_OF_STEP = 5_000
"""Of a step that the findings speak of, or that was replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenStep:
    """One step of one rank that the page shows."""

    step: int
    rank: int
    holder: Run
    """The run that holds its events: the run itself, or a replay."""
    is_replay: bool
    is_telling: bool
    """Whether a finding speaks of it, or it was replayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The steps of a page, and what was left out to get there."""

    steps: Sequence[ChosenStep]
    notes: Sequence[str]


def choose_steps(view: RunView) -> Choice:
    """Choose steps: those that findings speak of and replays, the first and the last, then others at even distances.

    Of each step the ranks are chosen that findings name, and the first one that was recorded.
    """
    mentioned = {(finding.step, finding.rank or 0) for finding in view.findings if finding.step is not None}
    ranks = sorted({rank for _, rank in mentioned})
    found: list[ChosenStep] = []
    other_ranks: set[int] = set()
    for step, holder in recorded_steps(view.run):
        is_replay = holder is not view.run
        there = holder.ranks or [0]
        wanted = [rank for rank in there if rank == there[0] or rank in ranks]
        other_ranks.update(rank for rank in there if rank not in wanted)
        for rank in wanted:
            is_telling = is_replay or (step, rank) in mentioned
            found.append(ChosenStep(step=step, rank=rank, holder=holder, is_replay=is_replay, is_telling=is_telling))
    kept = _spread_evenly(found, most=MAX_STEPS)
    notes = []
    if len(kept) < len(found):
        notes.append(
            f"{len(kept)} of {len(found)} recorded steps can be selected: those that findings mention, and others at "
            "even intervals."
        )
    if other_ranks:
        notes.append(f"The steps of {len(other_ranks)} more ranks are left out, because no finding mentions them.")
    return Choice(steps=kept, notes=notes)


def room_for(steps: Sequence[ChosenStep], sizes: Sequence[int]) -> list[int]:
    """Return how many results of each step the page has room for: the telling ones first, the others share the rest."""
    left = MAX_RESULTS
    room = [0] * len(steps)
    for place, step in enumerate(steps):
        if step.is_telling:
            room[place] = min(sizes[place], MAX_RESULTS_OF_STEP, left)
            left -= room[place]
    others = sorted((place for place, step in enumerate(steps) if not step.is_telling), key=lambda place: sizes[place])
    for nth, place in enumerate(others):
        room[place] = min(sizes[place], MAX_RESULTS_OF_STEP, left // (len(others) - nth))
        left -= room[place]
    return room


def _spread_evenly(steps: Sequence[ChosenStep], *, most: int) -> list[ChosenStep]:
    if len(steps) <= most:
        return list(steps)
    telling = [place for place, step in enumerate(steps) if step.is_telling][: most // 2]
    num_others = most - len(telling) - 2
    spread = (round(nth * (len(steps) - 1) / (num_others + 1)) for nth in range(num_others + 2))
    return [steps[place] for place in _first_kept(most, [0, len(steps) - 1, *telling, *spread])]


def _first_kept(most: int, places: Iterable[int]) -> list[int]:
    return sorted(list(dict.fromkeys(places))[:most])
