"""Watches a training by the Trainer of Hugging Face: one more callback, nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundoff.runs import Finding
from roundoff.watch.framework import FrameworkWatch, missing_library
from roundoff.watch.session import Watch
from roundoff.watch.settings import OnAnomaly, WatchSettings

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise missing_library("Hugging Face transformers", extra="hf") from error


class WatchCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Watches a training from its begin to its end and prints the verdict on stderr.

    ```python
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[WatchCallback()])
    trainer.train()
    ```

    The Trainer does not tell its callbacks of an exception: then the verdict comes when Python ends, or from `close`.

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

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        model, optimizer = kwargs.get("model"), kwargs.get("optimizer")
        self._framework.begin([] if model is None else [model], [] if optimizer is None else [optimizer])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop watching and print the verdict."""
        self._framework.end()

    def close(self, error: BaseException | None = None) -> None:
        """Stop watching a training that raised, and print the verdict."""
        self._framework.end(error)
