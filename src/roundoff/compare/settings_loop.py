"""What two loops did: the order of their calls, clipping, schedulers, and the learning rate over the steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from roundoff.compare.setting import Difference, SettingKind
from roundoff.runs import Call, JsonValue, Run

_CALLS = ("zero_grad", "forward", "backward", "unscale", "clip", "step", "scheduler")
"""The calls whose order matters; others, such as saving, change nothing."""


def loop_differences(reference: Run, candidate: Run) -> list[Difference]:
    """Compare what the loops of rank 0 did."""
    ours, theirs = reference.calls(), candidate.calls()
    return [
        *_order(ours, theirs),
        *_clipping(ours, theirs),
        *_schedulers(ours, theirs),
        *_learning_rates(ours, theirs, is_told=bool(reference.structures() and candidate.structures())),
    ]


def _order(ours: list[Call], theirs: list[Call]) -> Iterator[Difference]:
    """Yield the first step whose calls come in another order; the last step of a run may be cut short."""
    first, second = _by_step(ours), _by_step(theirs)
    for step in sorted(set(first) & set(second))[:-1][:3]:
        if first[step] != second[step]:
            yield Difference(
                what=f"calls in step {step}",
                reference=", ".join(first[step]),
                candidate=", ".join(second[step]),
                kind=SettingKind.LOOP,
                suspicion=0.85,
            )
            return


def _by_step(calls: list[Call]) -> dict[int, list[str]]:
    """Return the calls of each step in their order, those that follow their like told once."""
    found: dict[int, list[str]] = {}
    for step, group in itertools.groupby(calls, key=lambda call: call.step):
        names = [call.call for call in group if call.call in _CALLS and not call.detail.get("initial")]
        found.setdefault(step, []).extend(name for name, _ in itertools.groupby(names))
    return found


def _clipping(ours: list[Call], theirs: list[Call]) -> Iterator[Difference]:
    first, second = (_first_detail(calls, "clip", "max_norm") for calls in (ours, theirs))
    if first is not None and second is not None and first != second:
        yield _hyperparameter("max_norm of clipping", first, second)


def _schedulers(ours: list[Call], theirs: list[Call]) -> Iterator[Difference]:
    first, second = (_first_detail(calls, "scheduler", "scheduler") for calls in (ours, theirs))
    if first != second:
        yield _hyperparameter("scheduler", first, second)


def _first_detail(calls: list[Call], name: str, key: str) -> JsonValue:
    return next((call.detail[key] for call in calls if call.call == name and key in call.detail), None)


def _learning_rates(ours: list[Call], theirs: list[Call], *, is_told: bool) -> Iterator[Difference]:
    """Yield the first step whose learning rate differs, unless it is the first one and told by the optimizers."""
    first, second = (
        {call.step: call.detail["lr"] for call in calls if call.call == "step" and call.detail.get("lr")}
        for calls in (ours, theirs)
    )
    common = sorted(set(first) & set(second))
    different = next((step for step in common if first[step] != second[step]), None)
    if different is not None and not (is_told and different == common[0]):
        yield _hyperparameter(f"learning rate from step {different} on", first[different], second[different])


def _hyperparameter(what: str, ours: JsonValue, theirs: JsonValue) -> Difference:
    kind = SettingKind.HYPERPARAMETER
    return Difference(what=what, reference=ours, candidate=theirs, kind=kind, suspicion=0.9)
