"""Watches a training with Hugging Face Accelerate through a tracker, which starts and ends with the training."""

from __future__ import annotations

from roundoff.errors import UsageError
from roundoff.watch.framework import FrameworkCallback, missing_library
from roundoff.watch.watch import Watch

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise missing_library("Hugging Face Accelerate", extra="hf") from error
if not hasattr(GeneralTracker, "start"):
    raise UsageError.explain(
        "This tracker is for Hugging Face Accelerate 1.8 or newer.",
        why="older versions do not tell a tracker when the training starts.",
        fix="pip install 'accelerate>=1.8', or watch the script with `roundoff run`.",
    )


class WatchTracker(FrameworkCallback, GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Watches from `init_trackers` to `end_training` and prints the verdict on stderr.

    ```python
    accelerator = Accelerator(log_with=WatchTracker())
    accelerator.init_trackers("my training")
    ...
    accelerator.end_training()
    ```

    If a script raises before `end_training`, the verdict is printed when Python exits, or by `finish`.

    The arguments are those of `FrameworkCallback`.
    """

    name = "roundoff"
    requires_logging_directory = False
    main_process_only = False  # every rank writes files of its own

    @property
    def tracker(self) -> Watch | None:
        """The watch, as `accelerator.get_tracker("roundoff", unwrap=True)` returns it."""
        return self._framework.watch

    def start(self) -> None:
        """Start watching."""
        self._framework.begin()

    def finish(self, error: BaseException | None = None) -> None:
        """Stop watching and print the verdict."""
        self._framework.end(error)
