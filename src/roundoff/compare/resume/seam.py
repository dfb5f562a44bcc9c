"""Finds the step of a run that a resumed run went on from: steps are counted from 0 in each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundoff.errors import CompareError
from roundoff.runs import Run, StateFacts
from roundoff.words import join_words, plural

_MIN_SHARE = 0.1
"""A checkpoint is recognised by at least this share of the weights that a run begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """Where a resumed run goes on."""

    step: int
    """The step of the run that is the first one of the resumed run."""
    found_by: str
    """How that is known, as the end of a sentence."""
    reference: StateFacts | None
    """The run's state before this step; as it was saved, if the run went no further; None if it is not known."""
    candidate: StateFacts | None
    """The resumed run's state before its first step."""

    @property
    def is_as_saved(self) -> bool:
        """Whether the run's state is known as it was saved only, not as the next step began."""
        return self.reference is not None and self.reference.moment == "saved"


def find_seam(run: Run, resumed: Run, *, at: int | None = None, rank: int = 0) -> Seam:
    """Find the seam by the step that was given, by equal weights, or by the count in the optimizer's state.

    Raises:
        CompareError: the second run loaded nothing, or nothing that the first one saved.
    """
    states = run.states(rank=rank)
    candidate = state_after_load(resumed, rank)
    if at is not None:
        return Seam(step=at, found_by="as --at says", reference=_state_of(states, at), candidate=candidate)
    if candidate is None:
        raise _no_load(run, resumed, rank)
    by_weights = find_by_weights(states, candidate)
    if by_weights is not None:
        step, num_equal, num_all = by_weights
        found_by = f"by its weights: {num_equal} of {num_all} are those of that step"
        return Seam(step=step, found_by=found_by, reference=_state_of(states, step), candidate=candidate)
    by_updates = _find_by_updates(run, states, candidate, rank)
    if by_updates is not None:
        found_by = "by the number of updates in the optimizer's state"
        return Seam(step=by_updates, found_by=found_by, reference=_state_of(states, by_updates), candidate=candidate)
    raise _unrelated_error(run, resumed, states, candidate)


def state_after_load(resumed: Run, rank: int) -> StateFacts | None:
    """Return the state before the first step, if that came after a load; a step that began again has several."""
    found = [state for state in resumed.states(rank=rank) if state.moment == "began" and state.after == "load"]
    return next((state for state in reversed(found) if state.step == 0), None)


def _state_of(states: Sequence[StateFacts], step: int) -> StateFacts | None:
    """Return the state before a step, rather as the step began than as it was saved."""
    found = [state for state in states if state.step == step]
    return next((state for state in reversed(found) if state.moment == "began"), found[-1] if found else None)


def weights_of(state: StateFacts) -> dict[str, str]:
    """Return the hash of each weight, or of each group where single ones were not written."""
    found: dict[str, str] = {}
    for group in state.groups:
        if group.kind == "weight":
            hashes = group.tensors or {"": group.hash}
            found.update({f"{group.name}/{name}": number for name, number in hashes.items()})
    return found


def find_by_weights(states: Sequence[StateFacts], candidate: StateFacts) -> tuple[int, int, int] | None:
    """Return the step whose state has the most weights of the candidate, how many, and how many there are."""
    wanted = weights_of(candidate)
    scores: dict[int, tuple[int, bool]] = {}
    for state in states:
        known = weights_of(state)
        num_equal = sum(known.get(name) == number for name, number in wanted.items())
        has_updates = bool(candidate.updates) and state.updates == candidate.updates
        scores[state.step] = max(scores.get(state.step, (0, False)), (num_equal, has_updates))
    if not scores:
        return None
    step = max(scores, key=lambda step: (scores[step], -step))
    num_equal = scores[step][0]
    is_enough = num_equal >= max(1, _MIN_SHARE * len(wanted))
    is_only_frozen = len(scores) > 1 and len({score[0] for score in scores.values()}) == 1 and num_equal < len(wanted)
    return (step, num_equal, len(wanted)) if is_enough and not is_only_frozen else None


def _find_by_updates(run: Run, states: Sequence[StateFacts], candidate: StateFacts, rank: int) -> int | None:
    """Return the step before which the run's optimizers had counted as many updates as the candidate's."""
    counts = [count for count in candidate.updates.values() if isinstance(count, int) and count > 0]
    if not counts or not _may_be_same_model(states, candidate):
        return None
    for state in states:
        if state.updates == candidate.updates:
            return state.step
    began_fresh = state_after_load(run, rank) is None
    num_steps = max((line.step for line in run.metrics(rank=rank)), default=-1) + 1
    return max(counts) if began_fresh and max(counts) <= num_steps else None


def _may_be_same_model(states: Sequence[StateFacts], candidate: StateFacts) -> bool:
    """Say whether most weights have names that the run's have too, as far as these are known."""
    names = {name for state in states for name in weights_of(state)}
    wanted = weights_of(candidate).keys()
    return not names or not wanted or 2 * len(names & wanted) >= len(wanted)


def _no_load(run: Run, resumed: Run, rank: int) -> CompareError:
    name = resumed.path.name
    if any(call.call == "load" for call in resumed.calls(rank=rank)):
        return CompareError.explain(
            f"'{name}' does not say what its state was after it loaded a checkpoint.",
            why="an older version of roundoff wrote it, or `roundoff record` did.",
            fix="run it again with `roundoff run`, or say --at STEP to compare what came after.",
        )
    is_reversed = state_after_load(run, rank) is not None
    return CompareError.explain(
        f"'{name}' was not resumed: it loaded no checkpoint.",
        why="neither load_state_dict nor torch.load was called before its first step.",
        fix="name the run that was resumed second."
        if is_reversed
        else "say --at STEP if it was resumed in another way.",
    )


def _unrelated_error(run: Run, resumed: Run, states: Sequence[StateFacts], candidate: StateFacts) -> CompareError:
    fix = "say --at STEP, the step of the first run that the second one should go on with."
    saved = sorted({state.step for state in states if state.moment == "saved"})
    if not saved:
        return CompareError.explain(
            f"'{run.path.name}' saved no checkpoint that was seen.",
            why="torch.save was not called with the weights of the training.",
            fix=fix,
        )
    num = len(weights_of(candidate))
    steps = join_words([str(step) for step in saved], at_most=4)
    return CompareError.explain(
        f"'{resumed.path.name}' was not resumed from a checkpoint of '{run.path.name}', as far as the two tell.",
        why=f"of the {plural(num, 'weight')} that it began with, too few are those that were saved at step {steps}.",
        fix=fix,
    )
