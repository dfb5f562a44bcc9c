"""What to record: which steps, sites, ops and phases."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Literal, get_args

from roundoff.errors import RecordError
from roundoff.record.loop.step_clock import PHASES
from roundoff.record.reference import ReferenceKind
from roundoff.runs import JsonValue

Level = Literal["summary", "tensors"]
LEVELS: tuple[Level, ...] = ("summary", "tensors")

_MAX_LISTED_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSelection:
    """Steps, sites, ops and phases to record; None means all.

    Sites and ops are shell patterns: `blocks.*` takes everything below `blocks`, `aten.*mm` takes mm, addmm and bmm; a
    bare op name (`softmax`) needs no `aten.`.
    """

    steps: Collection[int] | None = None
    sites: tuple[str, ...] | None = None
    ops: tuple[str, ...] | None = None
    phases: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        *,
        steps: Collection[int] | int | None = None,
        sites: Sequence[str] | str | None = None,
        ops: Sequence[str] | str | None = None,
        phases: Sequence[str] | str | None = None,
    ) -> EventSelection:
        """Check the user's values and make a selection of them."""
        chosen = _as_tuple(phases)
        for phase in chosen or ():
            _check_choice("phase", phase, PHASES)
        if isinstance(steps, int):
            steps = (steps,)
        if steps is not None and (not steps or _smallest(steps) < 0):
            raise RecordError.explain(
                f"The steps {steps!r} select nothing.", why="steps count from 0.", fix="for example steps=range(3)."
            )
        return cls(steps=steps, sites=_as_tuple(sites), ops=_as_tuple(ops), phases=chosen)

    @property
    def takes_everything(self) -> bool:
        """Whether every event of a selected step is wanted."""
        return self.sites is None and self.ops is None and self.phases is None

    def wants_step(self, step: int) -> bool:
        """Return whether a step is to be recorded."""
        return self.steps is None or step in self.steps

    def has_steps_after(self, step: int) -> bool:
        """Return whether a later step is to be recorded."""
        return self.steps is None or _largest(self.steps) > step

    def first_missing(self, recorded: Collection[int], count: int) -> list[int]:
        """Return the first of the wanted steps, up to `count` of them, that are not among the recorded ones."""
        steps = () if self.steps is None else self.steps
        in_order = steps if isinstance(steps, range) else sorted(set(steps))
        return list(islice((step for step in in_order if step not in recorded), count))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingSettings:
    """What a recording keeps; see `recording` for what each of them means."""

    selection: EventSelection = EventSelection()
    level: Level = "summary"
    inputs: bool = False
    histograms: bool = False
    reference: ReferenceKind | None = None
    stacks: bool = False
    strict: bool = False
    stores_data: bool = True

    def check(self) -> None:
        """Raise if there is no such level or reference."""
        _check_choice("level", self.level, LEVELS)
        if self.reference is not None:
            _check_choice("reference", self.reference, get_args(ReferenceKind))

    def to_json(self) -> dict[str, JsonValue]:
        """Return the settings as run.json holds them."""
        names = ("level", "inputs", "histograms", "reference", "stacks")
        return {name: getattr(self, name) for name in names}


def _check_choice(what: str, chosen: str, choices: Sequence[str]) -> None:
    if chosen not in choices:
        raise RecordError.explain(
            f"There is no {what} '{chosen}'.", why=f"the {what}s are {', '.join(choices)}.", fix="use one of them."
        )


class EventFilter:
    """Decides once for each phase, site and op, and remembers which patterns have matched."""

    def __init__(self, selection: EventSelection) -> None:
        self._selection = selection
        self._decided: dict[tuple[str, str, str], bool] = {}
        self._unmatched = {("site", p) for p in selection.sites or ()} | {("op", p) for p in selection.ops or ()}
        self._seen_phases: set[str] = set()
        self._seen_sites: set[str] = set()
        self._seen_ops: set[str] = set()

    def wants(self, phase: str, site: str, op: str) -> bool:
        """Return whether an event is wanted."""
        key = (phase, site, op)
        known = self._decided.get(key)
        if known is None:
            known = self._decided[key] = self._decide(phase, site, op)
        return known

    def _decide(self, phase: str, site: str, op: str) -> bool:
        self._seen_phases.add(phase)
        self._seen_sites.add(site)
        self._seen_ops.add(op)
        of = self._selection
        in_phase = of.phases is None or phase in of.phases
        at_site = of.sites is None or self._any("site", of.sites, site)
        is_op = of.ops is None or self._any("op", of.ops, op, op.partition(".")[2])
        return in_phase and at_site and is_op

    def _any(self, kind: str, patterns: Sequence[str], *names: str) -> bool:
        found = False
        for pattern in patterns:
            if any(fnmatchcase(name, pattern) for name in names):
                self._unmatched.discard((kind, pattern))
                found = True
        return found

    def complaints(self) -> list[str]:
        """Return a sentence for each pattern that matched nothing, with the names it could have matched."""
        seen = {"site": sorted(self._seen_sites), "op": sorted(self._seen_ops)}
        found = [
            f"the {kind} pattern '{pattern}' matched nothing; there were {_join_some(seen[kind])}"
            for kind, pattern in sorted(self._unmatched)
        ]
        for phase in self._selection.phases or ():
            if phase not in self._seen_phases:
                found.append(f"the phase '{phase}' never came; there were {_join_some(sorted(self._seen_phases))}")
        if not found and not any(self._decided.values()):
            found.append("no event is of the chosen sites, ops and phases together, so nothing was recorded")
        return found


def check_sites(patterns: Sequence[str], sites: Sequence[str]) -> None:
    """Raise if a pattern matches none of a model's sites; those of other models (`Loss:`, `<ReLU>`) may still come."""
    for pattern in patterns:
        if not set(pattern) & set(":<") and not any(fnmatchcase(site, pattern) for site in sites):
            raise RecordError.explain(
                f"No site matches '{pattern}'.",
                why=f"the model's sites are {_join_some(sorted(sites))}.",
                fix="use one of them, or a pattern such as 'blocks.*'.",
            )


def parse_steps(text: str) -> Collection[int] | None:
    """Read `0-3`, `7`, `0-3,10,20-22` or `all`; both ends count.

    >>> sorted(parse_steps("0-2,7"))
    [0, 1, 2, 7]
    """
    if text == "all":
        return None
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        return _make_range(text, int(match[1]), int(match[2]))
    steps: set[int] = set()
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if match is None:
            raise RecordError.explain(
                f"'{text}' is not a list of steps.",
                why=f"'{piece}' is not a number.",
                fix="write 0-3 or 0-3,10 or all.",
            )
        some = _make_range(piece, int(match[1]), int(match[2] or match[1]))
        if len(some) > _MAX_LISTED_STEPS:
            raise RecordError.explain(
                f"'{piece}' is more steps than a list can hold.",
                why=f"in a list, a range may have at most {_MAX_LISTED_STEPS} steps.",
                fix="write one range alone, or all.",
            )
        steps.update(some)
    return frozenset(steps)


def _make_range(text: str, first: int, last: int) -> range:
    if last < first:
        raise RecordError.explain(f"'{text}' selects no step.", why="it ends before it begins.", fix="write 0-3.")
    return range(first, last + 1)


def _smallest(steps: Collection[int]) -> int:
    return min(steps[0], steps[-1]) if isinstance(steps, range) else min(steps)


def _largest(steps: Collection[int]) -> int:
    return max(steps[0], steps[-1]) if isinstance(steps, range) else max(steps)


def _as_tuple(value: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    found = (value,) if isinstance(value, str) else tuple(value)
    if not found:
        raise RecordError.explain("An empty selection records nothing.", fix="leave it out to record everything.")
    return found


def _join_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:12]) or "none"
    return f"{shown}, and {len(names) - 12} more" if len(names) > 12 else shown
