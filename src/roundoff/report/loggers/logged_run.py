"""Sends what is known about a run to experiment loggers; one that fails changes nothing else."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from roundoff.diagnose.diagnosis import view_run
from roundoff.errors import UsageError
from roundoff.files import write_output
from roundoff.report.findings_text import message_of
from roundoff.report.run_page.document import run_page
from roundoff.runs import RULE_FAILED, Finding, Run, Severity
from roundoff.words import join_words

LOGGERS = ("wandb", "mlflow", "trackio")
"""The library NAME is used by `send` in NAME_logger.py."""
PROJECT = "roundoff"
"""Where runs go if the training has none of its own open: projects and experiments are made with this name."""
_CURVES = ("loss", "eval_loss", "lr", "loss_scale", "grad_norm", "update_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """What a logger sends."""

    name: str
    folder: Path
    curves: Sequence[tuple[int, Mapping[str, float]]]
    """The numbers of each step, by name; without those that are not finite, which few loggers can show."""
    findings: Sequence[Finding]
    page: Path
    """The page, a file that is gone when the logger has returned."""

    @property
    def alerts(self) -> list[tuple[str, str, Literal["error", "warning"]]]:
        """The title, the text and the severity of each error and warning."""
        return [
            (f"{each.rule}: {each.title}", message_of(each), "error" if each.severity is Severity.ERROR else "warning")
            for each in self.findings
            if each.severity is not Severity.NOTE
        ]

    @property
    def verdict(self) -> str:
        """The first alert in a few words, or that there is none."""
        return self.alerts[0][0] if self.alerts else "nothing found"


def check_loggers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of loggers; a `UsageError` names one that does not exist or is not installed."""
    for name in (names := tuple(names)):
        if name not in LOGGERS:
            raise UsageError.explain(f"There is no logger '{name}'.", why=f"the loggers are {join_words(LOGGERS)}.")
        if find_spec(name) is None:
            raise UsageError.explain(f"{name} is not installed.", fix=f"pip install {name}")
    return names


def log_run(run: Run, loggers: Iterable[str]) -> list[str]:
    """Send a run to loggers; return a line for each that failed.

    What they print goes to stderr: stdout belongs to the script.
    """
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        try:
            logged = _gather(run, Path(folder) / "roundoff.html")
        except Exception as error:
            return [f"the run was not logged: {_reason(error)}"]
        for name in loggers:
            try:
                importlib.import_module(f"roundoff.report.loggers.{name}_logger").send(logged)
            except (Exception, SystemExit) as error:  # whatever a library does, the training has ended well
                failed.append(f"the run was not logged to {name}: {_reason(error)}")
    return failed


def _gather(run: Run, page: Path) -> LoggedRun:
    view = view_run(run)
    write_output(page, run_page(view).html.encode())
    curves = [(step.step, _finite({name: getattr(step, name) for name in _CURVES})) for step in view.run.metrics()]
    findings = [finding for finding in view.findings if finding.rule != RULE_FAILED]
    return LoggedRun(name=view.name, folder=run.path, curves=curves, findings=findings, page=page)


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
