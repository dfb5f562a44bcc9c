"""A run that keeps what was read of it, for those who ask for much the same again and again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from roundoff.runs import folder as names
from roundoff.runs.anomaly import Anomaly
from roundoff.runs.batch_facts import BatchFacts
from roundoff.runs.call import Call
from roundoff.runs.event import Event
from roundoff.runs.metrics import Metrics
from roundoff.runs.parts import read_steps
from roundoff.runs.plain_json import JsonValue
from roundoff.runs.reader import Run
from roundoff.runs.schema import EVENTS, Table
from roundoff.runs.selection import Selection
from roundoff.runs.structure import Structure

T = TypeVar("T")

_MOST_EVENTS = 300_000
"""So many events are kept, half a kilobyte each; what a longer recording holds beyond is read again when asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun(Run):
    """A run as it was when it was first asked: every file is read once.

    Lists are handed out as copies, so that nobody changes what the next one reads.
    """

    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, run: Run) -> KeptRun:
        """Return a view of `run` that keeps what it reads."""
        return run if isinstance(run, KeptRun) else cls(path=run.path, info=run.info)

    @property
    def ranks(self) -> list[int]:
        """The ranks that have left files, in order."""
        return list(self._once("ranks", lambda: self._files.ranks))

    @property
    def steps(self) -> list[int]:
        """The steps that have events, in order."""
        return sorted({step for _, _, steps in self._event_parts for step in steps})

    @property
    def replayed_steps(self) -> list[int]:
        """The steps that were replayed, in order."""
        return list(self._once("replayed_steps", lambda: self._files.replayed_steps))

    def replay(self, step: int) -> Run:
        """Open the run that a replayed step left; it keeps what it reads, too."""
        return self._once(("replay", step), lambda: KeptRun.of(self._files.replay(step)))

    def metrics(self, *, rank: int = 0) -> list[Metrics]:
        """Return what each step came to, in order."""
        return list(self._once(("metrics", rank), lambda: self._files.metrics(rank=rank)))

    def calls(self, *, rank: int = 0) -> list[Call]:
        """Return what the loop did, in order."""
        return list(self._once(("calls", rank), lambda: self._files.calls(rank=rank)))

    def anomalies(self, *, rank: int | None = None) -> list[tuple[int, Anomaly]]:
        """Return (rank, anomaly) of everything the watch saw that cannot be right, by rank and in order."""
        return list(self._once(("anomalies", rank), lambda: self._files.anomalies(rank=rank)))

    def structures(self, *, rank: int = 0) -> list[Structure]:
        """Return what the training was made of, as often as that was looked at, in order."""
        return list(self._once(("structures", rank), lambda: self._files.structures(rank=rank)))

    def inputs(self, *, rank: int = 0) -> list[BatchFacts]:
        """Return what came into the steps from outside, in order."""
        return list(self._once(("inputs", rank), lambda: self._files.inputs(rank=rank)))

    def probes(self) -> list[dict[str, JsonValue]]:
        """Return what probes measured, in order."""
        return list(self._once("probes", lambda: self._files.probes()))

    def parameters(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return norms and shares of parameters, with `rank`."""
        rows = self._once(("parameters", rank), lambda: self._files.parameters(rank=rank))
        return Selection(step=step).filter(rows)

    def hashes(self, *, step: int | Collection[int] | None = None, rank: int | None = None) -> pa.Table:
        """Return the hashes of inputs, parameters, gradients and buffers, with `rank`."""
        rows = self._once(("hashes", rank), lambda: self._files.hashes(rank=rank))
        return Selection(step=step).filter(rows)

    def iter_events(
        self,
        *,
        step: int | Collection[int] | None = None,
        site: str | None = None,
        phase: str | None = None,
        op: str | None = None,
        rank: int | None = None,
    ) -> Iterator[Event]:
        """Yield the events that are asked for; those of one step and rank are kept, as far as there is room."""
        if not isinstance(step, int) or rank is None or site is not None or op is not None:
            return Run.iter_events(self, step=step, site=site, phase=phase, op=op, rank=rank)
        return (event for event in self._events_of(step, rank) if phase is None or event.phase == phase)

    def _events_of(self, step: int, rank: int) -> list[Event]:
        key = ("events", step, rank)
        if key in self._kept:
            return cast(list[Event], self._kept[key])
        events = list(Run.iter_events(self, step=step, rank=rank))
        num_events = self._kept.get("num_events", 0) + len(events)
        if num_events <= _MOST_EVENTS:
            self._kept.update({key: events, "num_events": num_events})
        return events

    @property
    def _event_parts(self) -> list[tuple[int, Path, set[int]]]:
        """Rank, file and steps of every part of events: who asks for one step again opens only what holds it."""
        return self._once(
            "event_parts",
            lambda: [(rank, path, read_steps(path)) for rank, _, path in names.parts(self.path, EVENTS.name)],
        )

    def _parts(self, table: Table, selection: Selection) -> list[tuple[int, Path]]:
        if table is not EVENTS or selection.step is None:
            return Run._parts(self, table, selection)
        wanted = {selection.step} if isinstance(selection.step, int) else set(selection.step)
        return [(rank, path) for rank, path, steps in self._event_parts if not wanted.isdisjoint(steps)]

    @property
    def _files(self) -> Run:
        return Run(path=self.path, info=self.info)

    def _once(self, key: Hashable, read: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = read()
        return cast(T, self._kept[key])
