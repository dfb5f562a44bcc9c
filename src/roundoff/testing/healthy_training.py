"""A training that must be healthy, as a block in a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from torch import nn
from torch.optim import Optimizer

from roundoff.diagnose import Diagnosis
from roundoff.report.findings_text import failure_lines, findings_text
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watching import watching_with


class HealthyTraining:
    """Called, it opens a block; the test fails with the verdict if the training inside is not healthy.

    Healthy means: it was watched from the first to the last step, and there is neither an error nor a warning.
    """

    def __init__(self, new_folder: Callable[[], Path], *, is_kept: bool) -> None:
        self._new_folder = new_folder
        self._is_kept = is_kept
        """Whether the run of a test that fails stays where it is."""

    @contextmanager
    def __call__(
        self, model: nn.Module | None = None, optimizer: Optimizer | None = None, *, probe_seconds: float = 10.0
    ) -> Iterator[Watch]:
        """Watch every step of the training inside the block.

        Args:
            model: names layers from the start; without it models are met as they are called.
            optimizer: known from the start; without it optimizers are found when training begins.
            probe_seconds: how long experiments with the last step may take after the training.
        """
        settings = WatchSettings(every_step=True, probe_seconds=probe_seconds)
        watch: Watch | None = None
        try:
            with watching_with(settings, model, optimizer, to=self._new_folder()) as watch:
                yield watch
        except Exception as error:
            if watch is not None:
                self._add_verdict(error, watch)
            raise
        diagnosis, verdict = self._diagnose(watch)
        if not _is_healthy(diagnosis):
            pytest.fail(verdict, pytrace=False)

    def _add_verdict(self, error: Exception, watch: Watch) -> None:
        """Add the verdict to an exception of the training, unless the exception is all that was found."""
        diagnosis, verdict = self._diagnose(watch)
        if any(finding.rule != "exception" for finding in diagnosis.findings) and not diagnosis.is_clean:
            error.add_note(verdict)

    def _diagnose(self, watch: Watch) -> tuple[Diagnosis, str]:
        """Return what was found, also as text, without commands that would open a run which is about to be deleted."""
        diagnosis, screen = watch.diagnosis(), watch.verdict()
        if self._is_kept:
            return diagnosis, screen
        failed = failure_lines(diagnosis.answers, diagnosis.failures)
        text = findings_text(diagnosis.findings, failed=failed, coverage=diagnosis.coverage)
        return diagnosis, f"{text}\nTo keep the run and a page about it: pytest --roundoff-artifacts DIR"


def _is_healthy(diagnosis: Diagnosis) -> bool:
    return diagnosis.is_clean and diagnosis.is_complete and diagnosis.coverage.watched == "complete"
