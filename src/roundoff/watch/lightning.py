"""Watches a training by Lightning: one more callback, nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.runs import Finding
from roundoff.watch.framework import FrameworkWatch, missing_library
from roundoff.watch.session import Watch
from roundoff.watch.settings import OnAnomaly, WatchSettings

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise missing_library("Lightning", extra="lightning") from error


class WatchCallback(Callback):
    """Watches a fit from the first training batch to its end and prints the verdict on stderr.

    ```python
    trainer = Trainer(max_epochs=3, callbacks=[WatchCallback()])
    trainer.fit(module, loader)
    ```

    Args:
        to: the run folder to make; by default the next free one in `runs/`, named after the script.
        budget: the share of the training's time that watching may take.
        on_anomaly: "report" goes on, "stop" ends the training, "skip" undoes the step and goes on.
        snapshot_memory: the most bytes that snapshots may take.
    """

    def __init__(
        self,
        to: str | Path | None = None,
        *,
        budget: float = 0.02,
        on_anomaly: OnAnomaly = "report",
        snapshot_memory: int = 2 * 2**30,
    ) -> None:
        settings = WatchSettings(budget=budget, on_anomaly=on_anomaly, snapshot_bytes=snapshot_memory)
        self._framework = FrameworkWatch(to=to, settings=settings)

    @property
    def watch(self) -> Watch | None:
        """The watch of the training under way, or of the last one."""
        return self._framework.watch

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the last training that ended, the verdict first."""
        return self._framework.findings

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self._framework.begin([pl_module], trainer.optimizers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching and print the verdict."""
        self._framework.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching a training that raised, and print the verdict."""
        self._framework.end(exception)
