"""Watches a training with Hugging Face Accelerate: its trackers begin and end with the training, and this is one."""

from __future__ import annotations

from roundoff.watch.framework import FrameworkCallback, missing_library
from roundoff.watch.session import Watch

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise missing_library("Hugging Face Accelerate", extra="hf") from error


class WatchTracker(FrameworkCallback, GeneralTracker):  # type: ignore[misc, unused-ignore]
    """Watches from `init_trackers` to `end_training` and prints the verdict on stderr.

    ```python
    accelerator = Accelerator(log_with=WatchTracker())
    accelerator.init_trackers("my training")
    ...
    accelerator.end_training()
    ```

    A script that raises before `end_training` gets its verdict when Python ends, or from `finish`.

    The arguments are those of `FrameworkCallback`.
    """

    name = "roundoff"
    requires_logging_directory = False
    main_process_only = False  # every rank keeps files of its own

    @property
    def tracker(self) -> Watch | None:
        """The watch, under the name that `accelerator.get_tracker("roundoff", unwrap=True)` asks for."""
        return self._framework.watch

    def start(self) -> None:
        """Begin to watch."""
        self._framework.begin()

    def finish(self, error: BaseException | None = None) -> None:
        """Stop watching and print the verdict."""
        self._framework.end(error)
