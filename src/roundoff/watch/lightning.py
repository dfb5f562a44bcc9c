"""Watches a training by Lightning through a callback."""

from __future__ import annotations

from typing import Any

from roundoff.watch.framework import FrameworkCallback, missing_library

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise missing_library("Lightning", extra="lightning") from error


class WatchCallback(FrameworkCallback, Callback):
    """Watches a fit from the first training batch to its end and prints the verdict on stderr.

    ```python
    trainer = Trainer(max_epochs=3, callbacks=[WatchCallback()])
    trainer.fit(module, loader)
    ```

    The arguments are those of `FrameworkCallback`.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start watching."""
        self._framework.begin([pl_module], trainer.optimizers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching and print the verdict."""
        self._framework.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop watching a training that raised, and print the verdict."""
        self._framework.end(exception)
