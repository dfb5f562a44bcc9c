"""What a user sees while a bisection, a plan or a sweep runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from roundoff.progress import ProgressBar

if TYPE_CHECKING:
    from roundoff.experiments.bisect.options import BisectEvent
    from roundoff.experiments.sweep.sweep_rows import SweepRow

_MAX_SHOWN = 4
_WIDTH = 100


class SweepProgress(ProgressBar):
    """Counts the rows of a sweep; on a terminal only failed rows get a line."""

    def __init__(self, *, num_rows: int, resume: str) -> None:
        super().__init__("rows", total=num_rows, on_interrupt=self._lines_after_interrupt)
        self._num_rows, self._num_done, self._resume = num_rows, 0, resume

    def row(self, row: SweepRow, is_new: bool) -> None:
        """Count a row, and show its result."""
        self._num_done += 1
        self.move(self._num_done, description=row.name)
        # A mistake in the file often makes every row fail, so failures are shown at once, above the bar too.
        if row.failure is not None or not self.is_bar:
            kept = "" if is_new else " (kept)"
            self.line(f"[{self._num_done}/{self._num_rows}] {row.name}: {_row_result(row)}{kept}")

    def _lines_after_interrupt(self) -> Sequence[str]:
        return [f"{self._num_done} of {self._num_rows} rows are kept. To resume: {self._resume}"]


class PlanProgress(ProgressBar):
    """Shows a line for everything that a plan has finished."""

    def __init__(self, *, resume: str) -> None:
        super().__init__(
            "planning", time="elapsed", on_interrupt=lambda: [f"every finished training is kept. To resume: {resume}"]
        )


class BisectProgress(ProgressBar):
    """Shows a line for every run of a bisection, and on the bar what is known about the culprits."""

    def __init__(self, *, resume: str) -> None:
        super().__init__("runs", time="elapsed", on_interrupt=self._lines_after_interrupt)
        self._resume = resume
        self._known: tuple[str, ...] = ()
        self._num_runs = 0

    def show(self, event: BisectEvent) -> None:
        """Show the result of one more run."""
        self._num_runs = event.num_runs or self._num_runs
        self._known = event.known or self._known
        self.line(bisect_line(event))
        self.move(event.num_runs or 0, total=event.at_most, description=known_text(event.known))

    def _lines_after_interrupt(self) -> Sequence[str]:
        known = known_text(self._known) or "nothing is known yet"
        return [
            f"interrupted after {self._num_runs} runs of the search; {known}",
            f"every run is kept. To resume: {self._resume}",
        ]


def bisect_line(event: BisectEvent) -> str:
    """Return one run as one line, with as many of the suspects as fit."""
    lines = (_format_bisect_line(event, most=most) for most in range(_MAX_SHOWN, -1, -1))
    shortest = _format_bisect_line(replace(event, seconds_left=None), most=0)
    line = next((line for line in lines if len(line) <= _WIDTH), shortest)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def known_text(known: tuple[str, ...], *, most: int = _MAX_SHOWN) -> str:
    """Return among which sites the culprits are.

    >>> known_text(("embed", "head"))
    'culprits among 2 sites: embed, head'
    """
    if not known:
        return ""
    if len(known) == 1:
        return f"culprit {known[0]}"
    if most == 0:
        return f"culprits among {len(known)} sites"
    more = "" if len(known) <= most else f" and {len(known) - most} more"
    return f"culprits among {len(known)} sites: {', '.join(known[:most])}{more}"


def _row_result(row: SweepRow) -> str:
    if row.top1 is None:
        return row.note
    bad = "" if row.first_nonfinite_step is None else f", not finite at step {row.first_nonfinite_step}"
    skipped = f", {row.skipped} skipped" if row.skipped else ""
    return f"top-1 {row.top1:.3f}{bad}{skipped}, {row.seconds:.1f} s"


def _format_bisect_line(event: BisectEvent, *, most: int) -> str:
    kept = "" if event.is_new else " (kept)"
    verdict = f": {event.verdict}" if event.verdict else ""
    if event.num_runs is None:
        return f"[before] {event.what}{verdict}{kept}"
    place = f"{event.num_runs}" if event.at_most is None else f"{event.num_runs}/{event.at_most}"
    known = f"; {known_text(event.known, most=most)}" if event.known else ""
    left = "" if event.seconds_left is None else f"; at most {_duration(event.seconds_left)} left"
    return f"[{place}] {event.what}{verdict}{kept}{known}{left}"


def _duration(seconds: float) -> str:
    """Return a time, rounded for someone who waits.

    >>> _duration(7.2), _duration(180)
    ('7 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
