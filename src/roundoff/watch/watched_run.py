"""The run that a watch writes, and what its user gets from it: the findings, the verdict, the page, the cost."""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from roundoff.console import escape_controls
from roundoff.diagnose import Diagnosis, diagnose_and_save
from roundoff.progress import announcing
from roundoff.report import verdict_screen, verdict_text, watched_text
from roundoff.runs import Anomaly, Finding, Gap, Run, RunWriter, append_gap
from roundoff.watch.budget import TimeBudget
from roundoff.words import plural

if TYPE_CHECKING:
    from roundoff.report.notebook import InlinePage


class WatchedRun:
    """The run folder of a watch, what was not watched, what watching has cost, and the diagnosis at the end."""

    num_steps: int
    """How many steps have closed."""

    def __init__(self, writer: RunWriter, budget: TimeBudget) -> None:
        self.on_move: Callable[[Path], None] | None = None
        """Called when the run has been moved to its own folder."""
        self.choose_folder: Callable[[], Path] | None = None
        """Returns the run's own folder, if the run waits elsewhere until training begins or the script ends."""
        self.complaints: list[str] = []
        """What a user should know that is no finding; complete when the block has ended."""
        self.has_ended = False
        """Whether the block has ended, and the run is complete."""
        self._writer = writer
        self._budget = budget
        self._diagnosis: Diagnosis | None = None
        self._gaps: list[Gap] = []

    @property
    def anomalies(self) -> list[Anomaly]:
        """What was seen so far that cannot be right."""
        raise NotImplementedError

    @property
    def gaps(self) -> list[Gap]:
        """What was not watched, also where that could not be written into the run."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """The rank that is watched, as it was when watching began."""
        return self._writer.rank

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self._writer.folder

    def _move_to_own_folder(self) -> None:
        """Move the run to its own folder, now that the script has made the folders that it makes itself."""
        choose, self.choose_folder = self.choose_folder, None
        if choose is None:
            return
        self._writer.move_to_chosen(choose)
        if self.on_move is not None:
            self.on_move(self.folder)

    def count_start(self, began: float, *, of_script: float = 0.0) -> None:
        """Count what was done before the script began as ours; see `TimeBudget.count_start`."""
        self._budget.count_start(began, of_script=of_script)

    @property
    def cost(self) -> float:
        """What the watch has cost, all included, as a share of the training's time."""
        return self._budget.cost

    @property
    def seconds(self) -> float:
        """How long the training has been watched."""
        return self._budget.seconds

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, the verdict first; none before the block has ended (`anomalies` are what was seen so far)."""
        return tuple(self.diagnosis().findings) if self.has_ended else ()

    def verdict(self, *, stream: TextIO | None = None) -> str:
        """Return what `roundoff run` prints at the end; to be called after the block.

        With a `stream`, as that can show it: in colour on a terminal.
        """
        run, diagnosis, watched = Run.open(self.folder), self.diagnosis(), self.watched_text()
        if stream is None:
            screen = verdict_text(run, diagnosis, watched=watched, draws=False)
        else:
            screen = verdict_screen(run, diagnosis, stream, watched=watched)
        return "\n".join([*(escape_controls(f"roundoff: {complaint}") for complaint in self.complaints), screen])

    def __repr__(self) -> str:
        found = None if self._diagnosis is None else plural(len(self._diagnosis.findings), "finding")
        state = (found or "not diagnosed") if self.has_ended else "running"
        return f"<Watch {self.folder}: {plural(self.num_steps, 'step')}, {state}>"

    def _repr_html_(self) -> str:
        from roundoff.report.notebook import run_html  # few trainings are in notebooks, and this loads all of a page

        if not self.has_ended:
            return html.escape(f"{self!r}; so far {plural(len(self.anomalies), 'anomaly', 'anomalies')}")
        self.diagnosis()
        return run_html(Run.open(self.folder))

    def page(self) -> InlinePage:
        """Return the page that `roundoff report` writes; a notebook shows it inside the cell."""
        from roundoff.report.notebook import inline_page

        self.diagnosis()
        return inline_page(Run.open(self.folder))

    def log_to(self, *loggers: str) -> None:
        """Send curves, findings and the page to loggers ("wandb", "mlflow", "trackio"); to be called after the block.

        A logger that fails is one line on stderr; one that is not installed is a `UsageError`.
        """
        from roundoff.report.loggers.logged_run import check_loggers, log_run

        check_loggers(loggers)
        self.diagnosis()
        for line in log_run(Run.open(self.folder), loggers):
            self._writer.say(line)

    def diagnosis(self) -> Diagnosis:
        """Diagnose what was seen, once, when the block has ended; the findings go into findings.json."""
        if self._diagnosis is None or not self.has_ended:
            with self._counting("diagnosis"), announcing("diagnosing"):
                self._diagnosis = diagnose_and_save(Run.open(self.folder), gaps=self.gaps, code_is_at_hand=True)
            self._budget.end()  # with the diagnosis everything has ended
        return self._diagnosis

    def watched_text(self, folder: Path | None = None) -> str:
        """Describe how long the training was watched, what that cost and where the run is; call it after the diagnosis.

        `folder` is the run folder as the user names it, if that is another path than the absolute one.
        """
        text = watched_text(num_steps=self.num_steps, seconds=self.seconds, parts=self._budget.parts())
        return f"{text}; {folder or self.folder}"

    def _note_gap(self, gap: Gap) -> None:
        self._gaps.append(gap)
        append_gap(self.folder, gap)

    @contextlib.contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        """Count the time of the block, which is outside of any hook, under a name of its own."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._budget.set_aside(time.perf_counter() - began, name, is_in_hook=False)
