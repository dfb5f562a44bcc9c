"""Run folders with states written by hand: a run that saves at step 10, and runs that were resumed from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from roundoff.runs import Metrics, Run, StateFacts, StateGroup
from tests.run_folders import write_run

SAVED = 10


def weights(*hashes: str, kind: Any = "weight", name: str = "Net") -> StateGroup:
    tensors = {f"layer{place}.weight": number for place, number in enumerate(hashes)}
    return StateGroup(kind=kind, name=name, hash="".join(hashes), num_tensors=len(hashes), l2=1.0, tensors=tensors)


MOMENTS = weights("a1", "b1", "c1", kind="optimizer", name="Adam.exp_avg")
STATE = StateFacts(
    step=SAVED,
    moment="saved",
    groups=(weights("a", "b", "c"), MOMENTS),
    rates={"Adam": [0.1]},
    updates={"Adam": SAVED},
    generators={"torch": "1", "numpy": "1", "python": "1"},
)


def lines(count: int, *, first: int = 0, **values: Any) -> list[Metrics]:
    """Metrics whose losses and rates depend on the step that they are counted from."""
    rates = values.pop("lr", lambda step: 0.1)
    return [
        Metrics(step=step, loss=2.0 / (1 + first + step), lr=rates(first + step), **values) for step in range(count)
    ]


def saving_run(folder: Path, *, is_stopped: bool = False, num_steps: int = 20, **changes: Any) -> Run:
    states = [replace(STATE, **changes), *([] if is_stopped else [replace(STATE, moment="began", **changes)])]
    return write_run(folder, states, lines(SAVED if is_stopped else num_steps), started="2026-01-01T00:00:00")


def resumed_run(folder: Path, *records: Any, **changes: Any) -> Run:
    state = replace(STATE, step=0, moment="began", after="load", **changes)
    return write_run(folder, state, records or lines(10, first=SAVED), started="2026-01-02T00:00:00")
