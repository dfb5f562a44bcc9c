"""A watch that the callback of a framework starts and ends, where no block of code surrounds the training."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from roundoff.errors import UsageError
from roundoff.progress import say
from roundoff.record.loop.observer import is_observed
from roundoff.record.process_info import rank
from roundoff.replay.investigator import OnAnomaly
from roundoff.runs import Finding
from roundoff.watch.settings import WatchSettings
from roundoff.watch.watch import Watch
from roundoff.watch.watching import watching_with


class FrameworkWatch:
    """Starts a watch when a training starts, and ends it with its verdict: what the callbacks have in common.

    A training that fails without notifying its callbacks is closed when the next one starts, or when Python exits.

    Args:
        to: the run folder to make; by default the next free one in `runs/`, named after the script.
        settings: how to watch.
    """

    def __init__(self, *, to: str | Path | None, settings: WatchSettings) -> None:
        self.watch: Watch | None = None
        """The watch of the current training, or of the last one."""
        self.findings: tuple[Finding, ...] = ()
        """The findings of the last training that ended, the verdict first."""
        self._to = to
        self._settings = settings
        self._open = contextlib.ExitStack()
        self._process = os.getpid()
        self._is_open = False

    def begin(self, models: Iterable[nn.Module] = (), optimizers: Iterable[Optimizer] = ()) -> None:
        """Start watching; models and optimizers that are not passed are found when they are used."""
        self.end()
        if is_observed():
            say("this training is already being watched; the callback does nothing.")
            return
        self._process = os.getpid()
        self._open = contextlib.ExitStack()
        self.watch = watch = self._open.enter_context(watching_with(self._settings, list(models), to=self._to))
        for optimizer in optimizers:
            watch.add_optimizer(optimizer)
        self._is_open = True
        atexit.register(self._end_at_exit)

    def end(self, error: BaseException | None = None) -> None:
        """Stop watching and print the verdict; does nothing if no training is being watched.

        Args:
            error: the exception that ended the training, if any.
        """
        if not self._is_open or self.watch is None or os.getpid() != self._process:
            return
        self._is_open = False
        atexit.unregister(self._end_at_exit)
        if error is not None:
            self.watch.note_exception(error)
            self.watch.training_failed = True
        self._open.close()
        if rank() == 0:
            try:
                self.findings = self.watch.findings
                print(self.watch.verdict(stream=sys.stderr), file=sys.stderr)
            except Exception as failure:  # the training has ended well, whatever happened to the run folder
                say(f"the run could not be diagnosed, so nothing is known about it: {failure}")

    def _end_at_exit(self) -> None:
        self.end(getattr(sys, "last_value", None) or RuntimeError("the training did not report its end"))


class FrameworkCallback:
    """The base of the callbacks for frameworks: takes the settings, and gives access to the watch and its findings.

    Args:
        to: the run folder to make; by default the next free one in `runs/`, named after the script.
        budget: the share of the training's time that watching may take.
        on_anomaly: "report" continues, "stop" ends the training, "skip" undoes the step and continues.
        snapshot_memory: the limit for snapshots and replays, in bytes; by default a quarter of what is free.
        kept_batches: save a few samples of the first N batches in the run (0: none).
        stores_data: with False no samples, batches or other tensors are stored in the run, also after an anomaly.
    """

    def __init__(
        self,
        to: str | Path | None = None,
        *,
        budget: float = 0.02,
        on_anomaly: OnAnomaly = "report",
        snapshot_memory: int | None = None,
        kept_batches: int = 2,
        stores_data: bool = True,
    ) -> None:
        super().__init__()  # the framework's own base class
        settings = WatchSettings(
            budget=budget,
            on_anomaly=on_anomaly,
            snapshot_bytes=snapshot_memory,
            kept_batches=kept_batches,
            stores_data=stores_data,
        )
        self._framework = FrameworkWatch(to=to, settings=settings)

    @property
    def watch(self) -> Watch | None:
        """The watch of the current training, or of the last one."""
        return self._framework.watch

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the last training that ended, the verdict first."""
        return self._framework.findings


def missing_library(name: str, *, extra: str) -> UsageError:
    """Return the error for a callback whose library is not installed."""
    return UsageError.explain(
        f"This callback is for {name}, which is not installed.",
        why=f"{name} is an optional dependency of roundoff.",
        fix=f"pip install 'roundoff[{extra}]'",
    )
