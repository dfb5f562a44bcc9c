"""Ops that must be exact: those of a test's body, each held against itself in fp64 or on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from roundoff.record import recording
from roundoff.record.reference import ReferenceKind
from roundoff.runs import Event, Run
from roundoff.words import plural, text_table

_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOps:
    """How exact ops must be: the arguments of `@pytest.mark.numerics`."""

    max_ulps: float
    """The largest error that an op may introduce, in units of the eps of its result's format."""
    reference: ReferenceKind = "fp64"
    """Each op is run again on the same inputs, in fp64 or on the CPU."""
    sites: Sequence[str] | str | None = None
    """Shell patterns: only these layers."""
    ops: Sequence[str] | str | None = None
    """Shell patterns: only these ops, such as `aten.*mm`."""
    phases: Sequence[str] | str | None = None
    """Only these of forward, backward, optimizer and eval."""

    @contextmanager
    def recording(self, folder: Path) -> Iterator[None]:
        """Record every op inside the block into a run folder, with the error that it introduces."""
        with recording(
            to=folder,
            sites=self.sites,
            ops=self.ops,
            phases=self.phases,
            reference=self.reference,
            stacks=True,
            strict=True,
        ):
            yield

    def check(self, folder: Path) -> None:
        """Fail the test if an op that was recorded is not exact enough, or if none could be checked."""
        judged = [event for event in Run.open(folder).iter_events() if event.introduced_ulps is not None]
        if not judged:
            pytest.fail(f"No op of this test could be held against {self.reference}.", pytrace=False)
        inexact = [event for event in judged if not _ulps(event) <= self.max_ulps]
        if inexact:
            pytest.fail(self._describe(inexact, num_judged=len(judged)), pytrace=False)

    def _describe(self, inexact: Sequence[Event], *, num_judged: int) -> str:
        ordered = sorted(inexact, key=_ulps, reverse=True)
        header = ("error", "op", "site", "phase", "place")
        lines = [
            (f"{_ulps(event):.3g} ulp of {event.dtype}", event.op_name, event.site, event.phase, event.source or "")
            for event in ordered[:_MAX_SHOWN]
        ]
        what = f"{len(inexact)} of {plural(num_judged, 'result')} of ops"
        more = len(inexact) - len(lines)
        text = [
            f"{what} {'is' if len(inexact) == 1 else 'are'} further from {self.reference} than {self.max_ulps:g} ulp:",
            text_table([header, *lines], left=set(header), ruled=False),
            *([f"and {more} more"] if more else []),
        ]
        return "\n".join(text)


def _ulps(event: Event) -> float:
    error = event.introduced_ulps
    return math.inf if error is None or math.isnan(error) else error
