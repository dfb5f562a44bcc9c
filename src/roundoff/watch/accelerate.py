"""Watches a training with Hugging Face Accelerate: its trackers begin and end with the training, and this is one."""

from __future__ import annotations

from pathlib import Path

from roundoff.runs import Finding
from roundoff.watch.framework import FrameworkWatch, missing_library
from roundoff.watch.session import Watch
from roundoff.watch.settings import OnAnomaly, WatchSettings

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise missing_library("Hugging Face Accelerate", extra="hf") from error


class WatchTracker(GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Watches from `init_trackers` to `end_training` and prints the verdict on stderr.

    ```python
    accelerator = Accelerator(log_with=WatchTracker())
    accelerator.init_trackers("my training")
    ...
    accelerator.end_training()
    ```

    A script that raises before `end_training` gets its verdict when Python ends, or from `finish`.

    Args:
        to: the run folder to make; by default the next free one in `runs/`, named after the script.
        budget: the share of the training's time that watching may take.
        on_anomaly: "report" goes on, "stop" ends the training, "skip" undoes the step and goes on.
        snapshot_memory: the most bytes that snapshots may take.
    """

    name = "roundoff"
    requires_logging_directory = False
    main_process_only = False  # every rank keeps files of its own

    def __init__(
        self,
        to: str | Path | None = None,
        *,
        budget: float = 0.02,
        on_anomaly: OnAnomaly = "report",
        snapshot_memory: int = 2 * 2**30,
    ) -> None:
        super().__init__()
        settings = WatchSettings(budget=budget, on_anomaly=on_anomaly, snapshot_bytes=snapshot_memory)
        self._framework = FrameworkWatch(to=to, settings=settings)

    @property
    def watch(self) -> Watch | None:
        """The watch of the training under way, or of the last one."""
        return self._framework.watch

    @property
    def tracker(self) -> Watch | None:
        """The same, under the name that `accelerator.get_tracker("roundoff", unwrap=True)` asks for."""
        return self._framework.watch

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found in the last training that ended, the verdict first."""
        return self._framework.findings

    def start(self) -> None:
        """Begin to watch."""
        self._framework.begin()

    def finish(self, error: BaseException | None = None) -> None:
        """Stop watching and print the verdict."""
        self._framework.end(error)
